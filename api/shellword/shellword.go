// Package shellword formats command lines that people copy from messages. Words of them are chosen by
// others: a member names its images, and says which cluster it is.
package shellword

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// plainWord is a word in which no shell sees more than the word. Some expand one that begins with =.
var plainWord = regexp.MustCompile(`^[A-Za-z0-9_./:@,+%][A-Za-z0-9_\-./:=@,+%]*$`)

// FormatCommand returns a command line to copy. Each %s is one word: whoever chooses it would
// otherwise write commands for whoever copies it.
func FormatCommand(format string, words ...string) string {
	quoted := make([]any, len(words))
	for i, word := range words {
		quoted[i] = Quote(word)
	}
	return fmt.Sprintf(format, quoted...)
}

// Quote returns a word of a command line, quoted where a shell would see more in it. What is not
// seen is escaped, and what would be a flag becomes a name that nothing has. ui/src/shellword.ts is its
// counterpart.
func Quote(word string) string {
	word = strings.ToValidUTF8(word, string(utf8.RuneError))
	if strings.HasPrefix(word, "-") {
		word = string(utf8.RuneError) + word
	}
	switch {
	case plainWord.MatchString(word):
		return word
	case !strings.ContainsFunc(word, isUnseen):
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for _, r := range word {
		switch {
		case r == '\\', r == '\'':
			b.WriteString(`\` + string(r))
		case isUnseen(r) && r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		case isUnseen(r):
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	return "$'" + b.String() + "'"
}

// isUnseen reports whether a terminal does not show a character as one.
func isUnseen(r rune) bool {
	return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) || r == '\u2028' || r == '\u2029'
}
