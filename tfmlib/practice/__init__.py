"Checkers of the practice pages, one module a chapter."
