//go:build linux

package faults

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Step describes a write, such as "create root disk: early". The order of an agent's writes
// differs between runs, because it works on several objects at a time; the set does not.
type Step string

// Kind returns the step without its object.
func (s Step) Kind() string {
	verb, _, _ := strings.Cut(string(s), ": ")
	return verb
}

// DescribeAttempts lists the attempts of an image's revisions, for a Step.
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

// ChildRole reduces a child's name to image and attempt, which do not differ between runs.
func ChildRole(name string) string {
	if m := childName.FindStringSubmatch(name); m != nil {
		return m[1] + "#" + m[2]
	}
	return name
}
