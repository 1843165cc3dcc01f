package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strings"
	"unicode"
)

const ellipsis = "…"

// Truncate shortens a text to at most limit bytes of valid UTF-8, with an ellipsis at the end
// if it was longer. A schema's maxLength counts characters, of which a text never has more
// than bytes.
func Truncate(text string, limit int) string {
	if len(text) <= limit {
		return strings.ToValidUTF8(text, "")
	}
	if limit < len(ellipsis) {
		return ""
	}
	return strings.TrimRight(strings.ToValidUTF8(text[:limit-len(ellipsis)], ""), ellipsis) + ellipsis
}

// JoinFirst lists at most so many names, and counts the others of a total.
func JoinFirst(names []string, most, total int) string {
	listed := names[:min(len(names), most)]
	joined := strings.Join(listed, ", ")
	if more := total - len(listed); more > 0 {
		joined += fmt.Sprintf(" and %d more", more)
	}
	return joined
}

// EncodedSize returns how many bytes a part of an object has as JSON.
func EncodedSize(part any) int {
	text, err := json.Marshal(part)
	if err != nil {
		panic(err) // the types hold only strings, numbers, times and quantities
	}
	return len(text)
}

// maxSanitizedBytes bounds the work that one text costs.
const maxSanitizedBytes = 16 << 10

// SanitizeText makes a text from outside fit for statuses, events and logs: at most limit
// bytes of valid UTF-8 on one line, without the secrets of URLs. A sanitized text stays as it is:
// statuses are compared with what is stored.
func SanitizeText(text string, limit int) string {
	return sanitize(text, limit, RedactURLs)
}

// SanitizeUserName is SanitizeText for the name of a user or group, which may be a URL: that of
// the issuer and a subject. What people store by it has to be the whole name.
func SanitizeUserName(name string, limit int) string {
	return sanitize(name, limit, func(text string) string { return text })
}

func sanitize(text string, limit int, redact func(string) string) string {
	if len(text) > maxSanitizedBytes {
		text = text[:maxSanitizedBytes]
		// The rest of a URL may be what tells its password from its host.
		text = text[:max(0, strings.LastIndexFunc(text, unicode.IsSpace))] + " " + ellipsis
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text)
	text = strings.TrimSpace(text)
	for range 4 { // a truncated URL may be redacted to another text
		next := Truncate(redact(text), limit)
		if next == text {
			break
		}
		text = next
	}
	return text
}
