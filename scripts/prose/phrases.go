package main

import (
	"fmt"
	"regexp"
	"strings"
)

// phrase is dialect, with what to write in its place.
type phrase struct {
	pattern *regexp.Regexp
	instead string
}

// phrases may not come back, in whatever file.
var phrases = []phrase{
	{regexp.MustCompile(`(?i)\b(is|are|was|were) gone by\b`), `"applies", "uses"`},
	{regexp.MustCompile(`(?i)\bfor ever\b`), `"forever", or the bound`},
	{regexp.MustCompile(`(?i)\bof no account\b`), `"ignored"`},
	{regexp.MustCompile(`(?i)\b(looked|looks|look|looking|asked|read|tried|written) (at )?anew\b`), `"again", or "reconciled"`},
	{regexp.MustCompile(`(?i)\b(looked|looks|look|looking) at again\b`), `"requeued", "reconciled again"`},
	{regexp.MustCompile(`(?i)\bhas (it|them|this|that|all|images?|machines?|one) looked at\b`), `"requeues", "reconciles"`},
	{regexp.MustCompile(`(?i)\bha(s|ve) another look\b`), `"reconciles again"`},
	{regexp.MustCompile(`(?i)\b(goes|go|comes) (that )?(is )?first (which|that)\b`), `the order, in words`},
	{regexp.MustCompile(`(?i)\bthat goes first\b`), `the order, in words`},
	{regexp.MustCompile(`(?i)\b(is|are|was|were|be|been) told (of|by|about)\b`), `"receives", "is notified of"`},
	{regexp.MustCompile(`(?i)\btell(s)? nobody\b`), `"silently"`},
	{regexp.MustCompile(`(?i)\bno more (is|are|of it|than that is)\b`), `"no longer"`},
	{regexp.MustCompile(`(?i)\bdials? in\b`), `"runs in pull mode", "registers"`},
	{regexp.MustCompile(`(?i)\bdialling in\b`), `"pull mode", "registration"`},
	{regexp.MustCompile(`(?i)\bnobody('s)? (looks|asks|knows|tells)\b`), `the subject that does not`},
	{regexp.MustCompile(`(?i)\bwhoever (is|has|comes|wants|leads|dials|carries)\b`), `the subject`},
	{regexp.MustCompile(`(?i)\bas long as it is not\b`), `"until"`},
	{regexp.MustCompile(`(?i)\bwhat (is|was) (carried|told|asked|wished|awaited) (up|down|of|by|is|was)\b`), `the object's name`},
	{regexp.MustCompile(`(?i)\bis not so any more\b`), `"no longer holds"`},
	{regexp.MustCompile(`(?i)\bnot .{0,30}\bany more\b`), `"no longer"`},
	{regexp.MustCompile(`(?i)\bis (there )?no (more|longer one)\b`), `"no longer exists"`},
	{regexp.MustCompile(`(?i)\bcomes to (an|its) end\b`), `"ends"`},
	{regexp.MustCompile(`(?i)\b(is|are) to be (had|told|carried|looked|gone)\b`), `present tense`},
	{regexp.MustCompile(`\b(DESIGN|BUILDING|FRONTENDS|LANGUAGE)(\.md)?[ ,:§(]`), `a link to docs/architecture.md`},
	{regexp.MustCompile(`--set [\w.]+=\{[^}]*,`), `quotes around KEY={a,b}: bash expands the braces`},
	{regexp.MustCompile(`kubectl (-n \S+ )?(annotate|delete|get|label|patch) clusters? `), `clusters.cluster.x-k8s.io: other projects have clusters, too`},
	{regexp.MustCompile(`, (is|too|was|has|does) (:=|=) [a-zA-Z]+[.\[(]`), `"ok" for a found-or-not result`},
	{regexp.MustCompile(`\bas where\b`), `"for example where"`},
	{regexp.MustCompile(`metav1\..*UTC\(\)\.Truncate\(time\.Second\)`), `storedtime.Truncate`},
}

func checkPhrases(file, text string) (found []finding) {
	for n, line := range strings.Split(text, "\n") {
		for _, p := range phrases {
			if match := p.pattern.FindString(line); match != "" {
				found = append(found, finding{file, n + 1, fmt.Sprintf("%q: write %s", match, p.instead)})
			}
		}
	}
	return found
}
