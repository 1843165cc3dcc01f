package doctor

import (
	"fmt"

	"github.com/pelotech/ot-fleet/api/shellword"
)

// BeforeJoin says what a person should know of a cluster that is to join, one line for each check
// that failed. What is of the agent is left out: it is about to be installed. How the cluster's
// context is named leads to the rest.
func (r *Report) BeforeJoin(context string) (lines []string) {
	warned := 0
	for i := range r.Findings {
		f := &r.Findings[i]
		switch {
		case f.Group == groupAgent:
		case f.Status == Warn:
			warned++
		case f.Status == Fail:
			subject := ""
			if f.Subject != "" {
				subject = " " + f.Subject
			}
			lines = append(lines, fmt.Sprintf("doctor: %s%s: %s. %s", f.ID, subject, f.Found, f.Mend))
		}
	}
	more := shellword.FormatCommand("kubectl ot doctor --member-context %s", context)
	switch {
	case warned == 1:
		lines = append(lines, "doctor: 1 warning: "+more)
	case warned > 1:
		lines = append(lines, fmt.Sprintf("doctor: %d warnings: %s", warned, more))
	}
	return lines
}
