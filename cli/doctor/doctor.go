// Package doctor judges whether a cluster has what the product needs: checks with stable ids,
// each with what was found, what is wanted, why it matters and how to mend it. It is pure: a
// snapshot goes in, findings come out. Package gather reads the snapshot.
package doctor

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Status is the outcome of a check.
type Status string

// Outcomes, from best to worst.
const (
	Pass Status = "Pass"
	// Skip: not checked; Found says why.
	Skip Status = "Skip"
	// Warn: it works, but not as well or with a risk.
	Warn Status = "Warn"
	// Fail: something that the product is asked to do does not work.
	Fail Status = "Fail"
)

// Finding is what one check says of one subject.
type Finding struct {
	// ID of the check. It never changes.
	ID     string `json:"id"`
	Group  string `json:"group"`
	Status Status `json:"status"`
	// Subject is the object that was judged; empty for the cluster.
	Subject string `json:"subject,omitempty"`
	Found   string `json:"found"`
	Wanted  string `json:"wanted,omitempty"`
	// Why it matters and how to Mend it, unless it passed.
	Why  string `json:"why,omitempty"`
	Mend string `json:"mend,omitempty"`
	// Page has more.
	Page string `json:"page"`
	// Unread: the check was skipped because something could not be read.
	Unread bool `json:"unread,omitempty"`
}

// Report is what doctor prints.
type Report struct {
	render.Envelope
	Cluster  string    `json:"cluster"`
	View     View      `json:"view"`
	Summary  Summary   `json:"summary"`
	Findings []Finding `json:"findings"`
}

// Summary counts findings.
type Summary struct {
	Passed  int `json:"passed"`
	Warned  int `json:"warned"`
	Failed  int `json:"failed"`
	Skipped int `json:"skipped"`
	// Unread are those of Skipped that could not be read.
	Unread int `json:"unread"`
}

// maxTextBytes bounds what others wrote.
const maxTextBytes = 600

// ExitCode is No if a check failed, Failure if one could not be made or none was, or else Yes.
func (r *Report) ExitCode() exit.Code {
	switch {
	case r.Summary.Failed > 0:
		return exit.No
	case r.Summary.Unread > 0, r.Summary.Passed+r.Summary.Warned == 0:
		return exit.Unanswered
	default:
		return exit.Yes
	}
}

// Examine makes all checks.
func Examine(s *Snapshot) *Report {
	r := &Report{Envelope: render.NewEnvelope("Doctor"), Cluster: s.Cluster, View: s.View}
	for i := range checks {
		e := &examiner{Snapshot: s, check: &checks[i]}
		e.run()
		r.Findings = append(r.Findings, e.findings...)
	}
	for i := range r.Findings {
		switch f := &r.Findings[i]; f.Status {
		case Pass:
			r.Summary.Passed++
		case Warn:
			r.Summary.Warned++
		case Fail:
			r.Summary.Failed++
		default:
			r.Summary.Skipped++
			if f.Unread {
				r.Summary.Unread++
			}
		}
	}
	return r
}

// examiner makes one check.
type examiner struct {
	*Snapshot
	check    *check
	findings []Finding
}

func (e *examiner) run() {
	switch {
	case e.View == ViewHub && e.check.hub == nil:
		e.addSkip("the hub does not know: needs --live or --member-context")
	case e.View == ViewHub:
		e.check.hub(e)
	case !e.hasRead(e.check.needs...):
	default:
		e.check.member(e)
		e.noteTruncated()
	}
}

// noteTruncated says where a check passed by the first objects alone.
func (e *examiner) noteTruncated() {
	if !slices.ContainsFunc(e.check.needs, e.isTruncated) {
		return
	}
	for i := range e.findings {
		if f := &e.findings[i]; f.Status == Pass {
			f.Found += "; only the first objects of many were looked at"
		}
	}
}

// hasRead reports whether sources could be read, or else adds why not.
func (e *examiner) hasRead(sources ...Source) bool {
	var why []string
	for _, source := range sources {
		if text := e.Unread[source]; text != "" {
			why = append(why, text)
		}
	}
	if len(why) == 0 {
		return true
	}
	e.add(Finding{Status: Skip, Found: strings.Join(why, "; "), Unread: true})
	return false
}

func (e *examiner) addPass(subject, format string, args ...any) {
	e.add(Finding{Status: Pass, Subject: subject, Found: fmt.Sprintf(format, args...)})
}

// addSkip says why there is nothing to check.
func (e *examiner) addSkip(format string, args ...any) {
	e.add(Finding{Status: Skip, Found: fmt.Sprintf(format, args...)})
}

// addWarn and addFail take the way to mend from the check's page where mend is empty.
func (e *examiner) addWarn(subject, found, wanted, mend string) {
	e.add(Finding{Status: Warn, Subject: subject, Found: found, Wanted: wanted, Mend: mend})
}

func (e *examiner) addFail(subject, found, wanted, mend string) {
	e.add(Finding{Status: Fail, Subject: subject, Found: found, Wanted: wanted, Mend: mend})
}

// add fills in what the check's page says, and bounds what others wrote.
func (e *examiner) add(f Finding) {
	section := sections[e.check.id]
	f.ID, f.Group, f.Page = e.check.id, e.check.group, PagePath+"#"+e.check.id
	if f.Status == Warn || f.Status == Fail {
		f.Why = section.why
		if f.Mend == "" {
			f.Mend = section.mend
		}
	}
	for _, text := range []*string{&f.Subject, &f.Found, &f.Wanted, &f.Mend} {
		*text = v1alpha1.SanitizeText(*text, maxTextBytes)
	}
	e.findings = append(e.findings, f)
}

func (e *examiner) isTruncated(source Source) bool { return slices.Contains(e.Truncated, source) }
