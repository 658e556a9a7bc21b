"""Links to sections, in Chromium on a phone: the test of test_sections.py."""
from test_sections import (  # noqa: F401
    context,
    pytestmark,
    test_links_to_sections_land_on_their_heading,
)

SCREEN = {"width": 390, "height": 844}
