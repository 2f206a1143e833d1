package bounded

import "strings"

// Text returns untrusted text as valid UTF-8 of at most limit bytes; limit must be more than three. Cut text ends with
// "...".
func Text(s string, limit int) string {
	if len(s) <= limit {
		if s = strings.ToValidUTF8(s, "\uFFFD"); len(s) <= limit {
			return s
		}
	}
	return strings.ToValidUTF8(s[:limit-3], "") + "..."
}
