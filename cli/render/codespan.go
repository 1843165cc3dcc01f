package render

import "strings"

// codeSpan returns a command as code of Markdown that nothing in it ends.
func codeSpan(command string) string {
	fence := "`"
	for strings.Contains(command, fence) {
		fence += "`"
	}
	if strings.HasPrefix(command, "`") || strings.HasSuffix(command, "`") {
		command = " " + command + " "
	}
	return fence + command + fence
}
