package apitest

import (
	"strings"

	"pgregory.net/rapid"
)

// Secret is in the query of the URLs of HostileText and HostileURL. It must show nowhere but
// in a spec.
const Secret = "S3CR3T"

// HostileText draws what a source, a driver or a member may send as text: huge, invalid UTF-8,
// control characters, quotes of several languages, URLs with a secret.
func HostileText() *rapid.Generator[string] {
	pieces := rapid.SampledFrom([]string{
		"x", "界", "\xff", "\x00", "\n", "\u202e", "a b ", "'", `"`, "\\", "${x}", "') || true || ('", "%s%n", "</script>",
		"https://h/p?X-Amz-Signature=" + Secret + " ", `Get "https://user:` + Secret + `@h/p": EOF `, "/p?token=" + Secret + "\n",
	})
	return rapid.Custom(func(t *rapid.T) string {
		var b strings.Builder
		for range rapid.IntRange(0, 3).Draw(t, "pieces") {
			n := rapid.SampledFrom([]int{1, 2, 255, 511, 513, 1023, 1025, 2049, 40_000, 200_000}).Draw(t, "times")
			piece := pieces.Draw(t, "piece")
			b.WriteString(strings.Repeat(piece, max(1, n/len(piece))))
		}
		return b.String()
	})
}

// HostileURL draws a URL that the schema of a spec accepts, with or without a secret.
func HostileURL() *rapid.Generator[string] {
	return rapid.Custom(func(t *rapid.T) string {
		path := strings.Repeat("p", rapid.SampledFrom([]int{0, 10, 1100, 1900}).Draw(t, "path"))
		return "https://h/" + path + rapid.SampledFrom([]string{"", "?", "?sig=" + Secret, "?a b=" + Secret, "#" + Secret}).Draw(t, "query")
	})
}
