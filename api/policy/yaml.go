package policy

import "strings"

// HasSeveralDocuments reports whether content stands before a document marker.
func HasSeveralDocuments(text string) bool {
	content := false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \t\r\n")
		switch {
		case line == "---" || line == "..." || strings.HasPrefix(line, "--- "):
			if content {
				return true
			}
			content = line != "---" && line != "..."
		case line != "" && !strings.HasPrefix(line, "#"):
			content = true
		}
	}
	return false
}
