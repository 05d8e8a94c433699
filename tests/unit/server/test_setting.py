"""The declaration of one setting: its text for errors, documents and the configuration of `init`."""

from incoming_payments.server.setting import REQUIRED, Setting, TableOf


def test_line_of_a_setting_for_init() -> None:
    """A required setting and an active one are set. Another optional one is a comment with its default."""
    assert Setting("name", str, "its name", written='"{name}"').line == 'name = "{name}"'
    assert Setting("host", str, "its host", "127.0.0.1", is_active=True).line == 'host = "127.0.0.1"'
    assert Setting("is_on", bool, "whether it is on", False).line == "# is_on = false"
    assert Setting("name", str, "its name").default is REQUIRED


def test_ranges_of_a_setting_as_text() -> None:
    """The text has the bounds, the usual range and its reason, as far as they are declared."""
    setting = Setting("size", int, "its size", 3, bounds=(1, 9), usual=(2, 5), unusual="others are rare")
    assert setting.values == "from 1 to 9, usually 2 to 5"
    assert setting.usually == "usually it is 2 to 5, because others are rare"
    assert (Setting("size", int, "its size").values, Setting("size", int, "its size").usually) == ("", "")


def test_names_of_a_table() -> None:
    """A table knows the names of its settings, so that an error can say where a setting belongs."""
    assert TableOf("thing", "[thing]", "A thing.", (Setting("size", int, "its size"),)).names == ("size",)
