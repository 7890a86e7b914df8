#!/usr/bin/env escript
%%! +S 1:1 -kernel logger_level none
%% Runs scripted trees of OTP's own supervisor.
%%
%% Each line of stdin is one Erlang term, each line of stdout the answer to it, as JSON:
%%   {begin, Supervisor}            starts a tree: {Name, Strategy, Intensity, AutoShutdown, [Child]}
%%                                  with Child = {Id, Restart, Significant, leaf | Supervisor}
%%   {fail, Id, Times}              the next starts of a leaf fail
%%   {ignore, Id}                   the next start of a leaf returns ignore
%%   {crash, Id, normal | error}    a leaf ends by itself
%%   {start, Name, Child}, {terminate, Name, Id}, {restart, Name, Id}, {delete, Name, Id}
%%                                  what can be asked of the supervisor of that name
%%   stop                           ends the tree, and forgets all that was said
%% The answer has what was asked for, what was started and stopped in which order, and the whole tree
%% once it has come to rest.
-module(yardstick).
-mode(compile).
-behaviour(supervisor).
-export([main/1, init/1, start_leaf/1]).

%% Seconds in which restarts are counted together: longer than any scenario.
-define(PERIOD, 3600).

main(_) ->
    process_flag(trap_exit, true),
    ets:new(world, [named_table, public, set]),
    serve(none).

serve(Root) ->
    case io:get_line("") of
        Line when is_list(Line) ->
            {ok, Tokens, _} = erl_scan:string(Line),
            {ok, Order} = erl_parse:parse_term(Tokens),
            ets:insert(world, {log, []}),
            {Answer, Next} = obey(Order, Root),
            {Tree, Last} = rest(Next),
            [{log, Log}] = ets:lookup(world, log),
            io:put_chars([json({[{answer, Answer}, {log, lists:reverse(Log)}, {tree, Tree}]}), $\n]),
            serve(Last);
        _ ->
            ok
    end.

%% What is asked.

obey({'begin', Spec}, none) ->
    case start_supervisor(Spec) of
        {ok, Pid} -> {done, Pid};
        {error, _} -> forget_exits(), {start_failed, none}
    end;
obey({fail, Id, Times}, Root) ->
    ets:insert(world, {{failures, Id}, Times}),
    {done, Root};
obey({ignore, Id}, Root) ->
    ets:insert(world, {{ignored, Id}, true}),
    {done, Root};
obey({crash, Id, How}, Root) ->
    [{_, Pid}] = ets:lookup(world, {leaf, Id}),
    Watch = monitor(process, Pid),
    Pid ! {crash, How},
    receive {'DOWN', Watch, process, Pid, _} -> ok end,
    {done, Root};
obey({start, Name, Child}, Root) ->
    {told(supervisor:start_child(pid_of(Name), spec(Child))), Root};
obey({terminate, Name, Id}, Root) ->
    {told(supervisor:terminate_child(pid_of(Name), Id)), Root};
obey({restart, Name, Id}, Root) ->
    {told(supervisor:restart_child(pid_of(Name), Id)), Root};
obey({delete, Name, Id}, Root) ->
    {told(supervisor:delete_child(pid_of(Name), Id)), Root};
obey(stop, Root) ->
    case is_pid(Root) of
        true ->
            exit(Root, shutdown),
            receive {'EXIT', Root, _} -> ok end;
        false ->
            ok
    end,
    ets:match_delete(world, {{'_', '_'}, '_'}),
    {done, none}.

pid_of(Name) ->
    [{_, Pid}] = ets:lookup(world, {supervisor, Name}),
    Pid.

told(ok) -> done;
told({ok, _}) -> done;
told({error, not_found}) -> not_found;
told({error, already_present}) -> exists;
told({error, {already_started, _}}) -> exists;
told({error, running}) -> busy;
told({error, restarting}) -> busy;
told({error, _}) -> start_failed.

forget_exits() ->
    receive {'EXIT', _, _} -> forget_exits() after 0 -> ok end.

%% Supervisors and leaves.

start_supervisor({Name, _, _, _, _} = Spec) ->
    write([$+, atom_to_list(Name)]),
    supervisor:start_link(?MODULE, Spec).

init({Name, Strategy, Intensity, AutoShutdown, Children}) ->
    ets:insert(world, {{supervisor, Name}, self()}),
    Flags = #{strategy => Strategy, intensity => Intensity, period => ?PERIOD, auto_shutdown => AutoShutdown},
    {ok, {Flags, [spec(Child) || Child <- Children]}}.

spec({Id, Restart, Significant, leaf}) ->
    #{id => Id, start => {?MODULE, start_leaf, [Id]}, restart => Restart, significant => Significant};
spec({Id, Restart, Significant, Supervisor}) ->
    Start = {erlang, apply, [fun start_supervisor/1, [Supervisor]]},
    #{id => Id, start => Start, restart => Restart, significant => Significant, type => supervisor}.

start_leaf(Id) ->
    write([$+, atom_to_list(Id)]),
    case {take_failure(Id), ets:take(world, {ignored, Id})} of
        {true, Ignored} ->
            ets:insert(world, Ignored),  % it is for a start that does not fail
            {error, refused};
        {false, [_]} ->
            ignore;
        {false, []} ->
            Parent = self(),
            Pid = spawn_link(fun() -> process_flag(trap_exit, true), Parent ! {up, self()}, live(Id) end),
            receive {up, Pid} -> ok end,  % otherwise a stop might come before it can write that down
            ets:insert(world, {{leaf, Id}, Pid}),
            {ok, Pid}
    end.

take_failure(Id) ->
    case ets:lookup(world, {failures, Id}) of
        [{_, Left}] when Left > 0 -> ets:insert(world, {{failures, Id}, Left - 1}), true;
        _ -> false
    end.

live(Id) ->
    receive
        {'EXIT', _, Reason} -> write([$-, atom_to_list(Id)]), exit(Reason);
        {crash, normal} -> exit(normal);
        {crash, error} -> exit(boom)
    end.

write(Entry) ->
    [{log, Log}] = ets:lookup(world, log),
    ets:insert(world, {log, [list_to_binary(Entry) | Log]}).

%% The tree at rest: every child that it lists is alive, and none is about to be restarted.

rest(none) ->
    {[], none};
rest(Root) ->
    case look(root, Root) of
        {ok, Tree} ->
            {Tree, Root};
        moving ->
            receive {'EXIT', Root, _} -> {[], none}
            after 0 -> erlang:yield(), rest(Root)
            end
    end.

look(Name, Pid) ->
    try {supervisor:which_children(Pid), supervisor:count_children(Pid)} of
        {Listed, Counts} ->
            Children = lists:reverse(Listed),
            case lists:any(fun is_moving/1, Children) of
                true ->
                    moving;
                false ->
                    Rows = [[Id, state(Child), Type] || {Id, Child, Type, _} <- Children],
                    Numbers = [proplists:get_value(Key, Counts) || Key <- [specs, active, supervisors, workers]],
                    look_below([{Id, Child} || {Id, Child, supervisor, _} <- Children, is_pid(Child)],
                               [[Name, Rows, Numbers]])
            end
    catch
        exit:_ -> moving
    end.

look_below([], Seen) ->
    {ok, Seen};
look_below([{Name, Pid} | Others], Seen) ->
    case look(Name, Pid) of
        {ok, Tree} -> look_below(Others, Seen ++ Tree);
        moving -> moving
    end.

is_moving({_, restarting, _, _}) -> true;
is_moving({_, Pid, _, _}) when is_pid(Pid) -> not is_process_alive(Pid);
is_moving(_) -> false.

state(undefined) -> down;
state(_) -> up.

%% As text.

json({Fields}) -> [${, lists:join($,, [[json(Key), $:, json(Value)] || {Key, Value} <- Fields]), $}];
json(Items) when is_list(Items) -> [$[, lists:join($,, [json(Item) || Item <- Items]), $]];
json(Number) when is_integer(Number) -> integer_to_list(Number);
json(Text) when is_binary(Text) -> [$", Text, $"];
json(Name) when is_atom(Name) -> [$", atom_to_list(Name), $"].
