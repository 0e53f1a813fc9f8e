"""The file of events that a child process writes and its parent reads."""

from ampcompat.abtest.event_log import EventReader, EventWriter


def test_an_incomplete_line_is_not_read_yet(tmp_path):
    path = str(tmp_path / "events")
    reader, writer = EventReader(path), EventWriter(path)
    writer.write({"step": 0, "text": "é"})
    writer.close()
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"step"')
    assert reader.new_events() == [{"step": 0, "text": "é"}]
    with open(path, "a", encoding="utf-8") as file:
        file.write(": 1}\n")
    assert reader.new_events() == [{"step": 1}]
    assert EventReader(str(tmp_path / "none")).new_events() == []
