from __future__ import annotations

from loopwarden import Supervisor
from loopwarden.supervision import Service


def test_a_service_tells_what_asks_for_the_end_before_it_has_ended() -> None:
    service = Service(Supervisor("jobs"), signals=())

    service.shut_down("enough")
    service.shut_down("more than enough")

    assert service.closing.wait(60) == "enough"
    assert not service.finished.is_ready()
    assert service.run().reason == "enough"


def test_a_service_whose_tree_ends_by_itself_says_so_when_all_is_over() -> None:
    tree = Supervisor.start("jobs")
    service = Service(tree, signals=())
    tree.stop()

    service.run()

    assert service.closing.wait(0) == "the tree has ended"
