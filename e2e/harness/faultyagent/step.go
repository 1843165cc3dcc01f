//go:build linux

package faultyagent

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Step is what a write does, in words: "create root disk: early". Its number
// among the writes changes from run to run, since the agent works on several
// objects at a time; what there is to be done does not.
type Step string

// Kind is the step without its object.
func (s Step) Kind() string {
	verb, _, _ := strings.Cut(string(s), ": ")
	return verb
}

// DescribeAttempts tells how far an image is with its attempts, for a Step.
func DescribeAttempts(st *v1alpha1.VMDiskImageStatus) string {
	text := ""
	for i := range st.Revisions {
		e := &st.Revisions[i]
		text += fmt.Sprintf(" %d/%d%s", e.Attempt, e.AttemptEnded, e.Outcome)
	}
	if st.Serving != nil {
		text += fmt.Sprintf(" serving %d", st.Serving.Attempt)
	}
	return text
}

var childName = regexp.MustCompile(`^(.*)-[0-9a-z]+-(\d+)(-[0-9a-z]+)?$`)

// ChildRole makes of a child's name its image's and the attempt: those do not change
// from run to run.
func ChildRole(name string) string {
	if m := childName.FindStringSubmatch(name); m != nil {
		return m[1] + "#" + m[2]
	}
	return name
}
