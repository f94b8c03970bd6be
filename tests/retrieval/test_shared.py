"""One index per corpus and process, and on disk one per node."""

import subprocess
import sys
import threading
import time

import pytest

from rllib_llm.errors import ConfigError
from rllib_llm.retrieval import shared

DOCUMENTS = [f"word{i} common" for i in range(50)]


@pytest.fixture
def nothing_shared(monkeypatch, tmp_path):
    monkeypatch.setattr(shared, "_SHARED", {})
    monkeypatch.setenv("RLLIB_LLM_CACHE", str(tmp_path))
    return tmp_path


def test_threads_build_one_index_together(nothing_shared):
    loads, found = [], []

    def load():
        loads.append(1)
        time.sleep(0.05)  # other threads arrive meanwhile
        return DOCUMENTS

    def ask():
        found.append(shared.shared_index("corpus", load))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(loads) == 1
    assert len(found) == 8
    assert len({id(index) for index in found}) == 1
    assert not list(nothing_shared.iterdir())  # too small for an index on disk


def test_a_failed_load_can_be_tried_again(nothing_shared):
    with pytest.raises(OSError, match="no such"):
        shared.shared_index("corpus", lambda: (_ for _ in ()).throw(OSError("no such")))
    index = shared.shared_index("corpus", lambda: DOCUMENTS)
    assert index.search("word7", 1) == ["word7 common"]


def test_unknown_engines_are_refused(nothing_shared):
    with pytest.raises(ConfigError, match="Did you mean 'bm25'"):
        shared.shared_index("corpus", lambda: DOCUMENTS, "bm52")


def test_big_corpora_are_written_once_and_by_content(nothing_shared, monkeypatch):
    written = []
    write = shared.BM25.write
    monkeypatch.setattr(
        shared.BM25,
        "write",
        staticmethod(lambda *args: (written.append(1), write(*args))),
    )
    for name in ("first", "second"):
        index = shared.shared_index(name, lambda: DOCUMENTS, big=50)
        assert index.search("word7", 1) == ["word7 common"]
    assert len(written) == 1
    changed = [*DOCUMENTS, "word50 common"]
    index = shared.shared_index("third", lambda: changed, big=50)
    assert index.search("word50", 1) == ["word50 common"]
    assert len(written) == 2
    # The boundary between documents is part of the content.
    joined = [DOCUMENTS[0] + " " + DOCUMENTS[1], *DOCUMENTS[2:], "x"]
    shared.shared_index("fourth", lambda: joined, big=50)
    assert len(written) == 3


def test_an_interrupted_writer_leaves_nothing(nothing_shared, monkeypatch):
    def broken(documents, folder):
        (folder / "half").write_text("of it")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(shared.BM25, "write", staticmethod(broken))
        with pytest.raises(OSError, match="disk full"):
            shared.shared_index("corpus", lambda: DOCUMENTS, big=50)
    assert not [p for p in nothing_shared.iterdir() if p.is_dir()]
    index = shared.shared_index("corpus", lambda: DOCUMENTS, big=50)
    assert index.search("word7", 1) == ["word7 common"]


@pytest.mark.slow
def test_several_processes_write_one_folder(nothing_shared):
    code = (
        "from rllib_llm.retrieval import shared_index\n"
        "index = shared_index('c', lambda: [f'word{i} common' for i in range(9000)], "
        "big=9000)\n"
        "print(index.search('word77', 1))"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    output = [process.communicate()[0].decode().strip() for process in running]
    assert output == ["['word77 common']"] * 3
    (folder,) = (p for p in nothing_shared.iterdir() if p.is_dir())
    assert sorted(p.name for p in folder.iterdir()) == [
        *("scores.npy", "starts.npy", "where.npy", "words.txt")
    ]
