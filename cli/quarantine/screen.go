// Package quarantine shows what a quarantine does, or its end.
package quarantine

import (
	"fmt"
	"strings"

	"github.com/pelotech/ot-fleet/api/quarantine"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/join"
	"github.com/pelotech/ot-fleet/cli/render"
)

// Request is what a person asks for.
type Request struct {
	Name string
	quarantine.Request
}

// Validate refuses arguments that do not go together.
func (r Request) Validate() error {
	if err := join.ValidateName(r.Name); err != nil {
		return err
	}
	reason := strings.TrimSpace(r.Reason)
	switch {
	case r.End && reason != "":
		return fmt.Errorf("--end takes no --reason: a quarantine that ends has none")
	case !r.End && reason == "":
		return fmt.Errorf("quarantine needs --reason, for whoever finds %s cut off; --end lets it take part again", r.Name)
	}
	if err := quarantine.ValidateReason(r.Reason); err != nil {
		return fmt.Errorf("--%w", err)
	}
	return nil
}

// Quarantine is the answer.
type Quarantine struct {
	render.Envelope
	Name string `json:"name"`
	quarantine.Change
}

// Names lists the MemberCluster.
func (q *Quarantine) Names() []string { return []string{render.Reference("MemberCluster", q.Name)} }

// Decide decides about a member as it is.
func Decide(r Request, member *v1alpha1.MemberCluster) (*Quarantine, error) {
	change, err := quarantine.Decide(r.Request, member)
	if err != nil {
		return nil, err
	}
	return &Quarantine{Envelope: render.NewEnvelope("Quarantine"), Name: r.Name, Change: change}, nil
}

// Draw draws the screen.
func (q *Quarantine) Draw(p *render.Page) {
	switch {
	case q.Reason != "" && q.Changed:
		p.Line(render.Attention.With("%s is in quarantine: %s", q.Name, q.Reason)...)
	case q.Reason != "":
		p.Line(render.Attention.With("%s is in quarantine already: %s", q.Name, q.Reason)...)
	case q.Changed:
		p.Line(render.Done.With("the quarantine of %s has ended", q.Name)...)
	default:
		p.Line(render.Done.With("%s is in no quarantine", q.Name)...)
	}
	for _, effect := range q.Effects {
		p.Line(render.Text("  %s", effect))
	}
	for i, command := range q.ByHand {
		if i == 0 {
			p.Line(render.Text("To revoke the hub's tokens, where the member is reached:"))
		}
		p.Command(command)
	}
}
