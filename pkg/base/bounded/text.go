package bounded

import "strings"

// Text returns a text that others control as valid UTF-8 of at most limit bytes, which are more than three. What is cut
// ends with "...".
func Text(s string, limit int) string {
	if len(s) <= limit {
		if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= limit {
			return s
		}
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}
