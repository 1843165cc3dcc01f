package why

import (
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/explain"
	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
)

type (
	// ImageSnapshot is what is known of an image of one cluster, from the cluster itself or
	// from the hub.
	ImageSnapshot = explain.ImageSnapshot
	// Budget is why as many imports may run as may.
	Budget = explain.Budget
	// Verdict is the answer in one word.
	Verdict = readapi.WhyVerdict
)

// Verdicts. Each has its exit code.
const (
	Ready   = readapi.WhyReady
	Failed  = readapi.WhyFailed
	Waits   = readapi.WhyWaits
	Held    = readapi.WhyHeld
	Unknown = readapi.WhyUnknown
)

// Image is the answer of kubectl ot why image.
type Image struct {
	render.Envelope
	explain.Image
	// Command that goes on, where somebody has to.
	Command string `json:"command,omitempty"`

	now time.Time
}

// NewImage decides what the screen says.
func NewImage(s ImageSnapshot) *Image {
	return &Image{Envelope: render.NewEnvelope("WhyImage"), Image: *explain.NewImage(s), now: s.Now}
}

// DoctorCommand shows whether the agent runs that has not processed an object; scope are the flags by which its
// cluster was reached, quoted for a shell.
func DoctorCommand(scope []string) string {
	return strings.Join(append([]string{"kubectl ot doctor"}, scope...), " ")
}

// Names is the VMDiskImage.
func (w *Image) Names() []string { return []string{render.Reference("VMDiskImage", w.Name)} }

// exitCodeOf a verdict.
func exitCodeOf(v Verdict) exit.Code {
	switch v {
	case Ready:
		return exit.Yes
	case Failed:
		return exit.No
	case Held:
		return exit.Held
	case Unknown:
		return exit.Unknown
	default:
		return exit.NotYet
	}
}

// ExitCode of the answer.
func (w *Image) ExitCode() exit.Code { return exitCodeOf(w.Verdict) }

// Summary is the answer in one line.
func (w *Image) Summary() string {
	text := w.Namespace + "/" + w.Name + " in " + w.Cluster + ": " + w.State()
	if w.Expected != nil && w.Expected.At != nil {
		text += ", expected at " + render.Clock(w.now, w.Expected.At.Time)
	}
	return text
}
