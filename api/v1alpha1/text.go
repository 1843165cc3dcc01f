package v1alpha1

import "strings"

// Truncate shortens a text to at most limit bytes of valid UTF-8, with an ellipsis at the end
// if it was longer.
func Truncate(text string, limit int) string {
	const ellipsis = "…"
	text = strings.ToValidUTF8(text, "")
	if len(text) > limit {
		text = strings.ToValidUTF8(text[:limit-len(ellipsis)], "") + ellipsis
	}
	return text
}
