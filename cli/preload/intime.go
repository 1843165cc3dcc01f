package preload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

// InTime says whether a preload is expected to be done by a time.
type InTime string

// Verdicts. One cluster that is late decides, then one of which nothing is known.
const (
	InTimeYes     InTime = "Yes"
	InTimeNo      InTime = "No"
	InTimeUnknown InTime = "Unknown"
)

// ParseBefore returns the time that --before means: the next 18:00, a day with its time, or RFC 3339.
func ParseBefore(text string, now time.Time) (time.Time, error) {
	if clock, err := time.Parse("15:04", text); err == nil {
		at := time.Date(now.Year(), now.Month(), now.Day(), clock.Hour(), clock.Minute(), 0, 0, now.Location())
		if !at.After(now) {
			at = time.Date(now.Year(), now.Month(), now.Day()+1, clock.Hour(), clock.Minute(), 0, 0, now.Location())
		}
		return at, nil
	}
	at, err := time.ParseInLocation("2006-01-02 15:04", text, now.Location())
	if err != nil {
		at, err = time.Parse(time.RFC3339, text)
	}
	switch {
	case err != nil:
		return at, fmt.Errorf("--before %s: must be a time as in 18:00, %q or 2026-03-02T18:00:00Z", text, "2026-03-02 18:00")
	case !at.After(now):
		return at, fmt.Errorf("--before %s: has passed", text)
	default:
		return at, nil
	}
}

// JudgeTime decides whether all downloads are expected by a time.
func (p *Preload) JudgeTime(before time.Time) {
	at := metav1.NewTime(before)
	p.Before, p.InTime = &at, InTimeYes
	for i := range p.Images {
		for j := range p.Images[i].Expected {
			switch e := &p.Images[i].Expected[j]; {
			case e.isLate(before):
				p.InTime = InTimeNo
				return
			case e.At == nil:
				p.InTime = InTimeUnknown
			}
		}
	}
}

// isLate: a cluster without room has it by no time, and a lower fleetConcurrency makes no image earlier.
func (e *Expected) isLate(before time.Time) bool {
	at := cmp.Or(e.At, e.AtBest)
	return e.Shortage != "" || at != nil && at.After(before)
}

// ExitCode is No where a cluster is late, Unknown where that is not known.
func (p *Preload) ExitCode(allowUnknown bool) exit.Code {
	switch {
	case p.InTime == InTimeNo:
		return exit.No
	case p.InTime == InTimeUnknown && !allowUnknown:
		return exit.Unknown
	default:
		return exit.Yes
	}
}

// drawExpected draws when an image is expected, and where that is late, or not known.
func (p *Preload) drawExpected(page *render.Page, image *Image) {
	clock := func(at *metav1.Time) string { return render.Clock(p.now, at.Time) }
	if by := image.ExpectedBy; by != nil {
		latest := ""
		if by.AtMost {
			latest = ", sooner where downloads are smaller than their disks"
		}
		page.Lines(append(render.Words("  "), render.Waiting.With("expected by ~%s (%s–%s)%s", clock(by.At), clock(by.Earliest), clock(by.Latest), latest)...))
	}
	var late, timed []string
	unknown := map[string][]string{}
	var reasons []string
	for i := range image.Expected {
		e := &image.Expected[i]
		switch {
		case e.Shortage != "":
			page.Lines(append(render.Words("  "), render.Attention.With("no room: %s (%s)", e.Cluster, e.Shortage)...))
		case p.Before != nil && e.isLate(p.Before.Time):
			text := e.Cluster + " ~" + clock(cmp.Or(e.At, e.AtBest))
			if e.At == nil {
				text += " at best"
			}
			late = append(late, text)
		case e.At == nil:
			if unknown[e.Message] == nil {
				reasons = append(reasons, e.Message)
			}
			unknown[e.Message] = append(unknown[e.Message], e.Cluster)
		default:
			timed = append(timed, e.Cluster+" ~"+clock(e.At))
		}
	}
	if len(timed) > 0 && image.ExpectedBy == nil {
		page.Lines(append(render.Words("  "), render.Waiting.With("expected: %s", listNames(timed))...))
	}
	if len(late) > 0 {
		page.Lines(append(render.Words("  "), render.Failed.With("after %s: %s", clock(p.Before), listNames(late))...))
	}
	slices.Sort(reasons)
	for _, reason := range reasons {
		page.Lines(append(render.Words("  "), render.Unknown.With("not known when: %s (%s)", listNames(unknown[reason]), strings.TrimSuffix(reason, "."))...))
	}
}
