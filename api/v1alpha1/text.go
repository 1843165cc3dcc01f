package v1alpha1

import "strings"

// Truncate shortens a text to a number of bytes, between two characters.
func Truncate(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const mark = "…"
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark
}
