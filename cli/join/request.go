package join

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Mode says who connects to whom.
type Mode string

// The modes.
const (
	// Push: the hub connects to the cluster.
	Push Mode = "push"
	// Pull: the cluster's agent connects to the hub.
	Pull Mode = "pull"
)

// Request is what a person asks for.
type Request struct {
	Mode Mode
	// Name of the cluster on the hub.
	Name string
	// Labels that the MemberCluster gets.
	Labels map[string]string
	// MemberContext leads to the cluster; empty where it cannot be reached from here.
	MemberContext string
	// Install the agent by Helm.
	Install bool
	// AutoAccept the first agent that presents the join token.
	AutoAccept bool
	// Server is the URL of the cluster's API server for the hub, if not the context's.
	Server string
	// Output is the file for the join token.
	Output string
}

// maxNameLength leaves room for the names that the hub derives, such as that of a Secret.
const maxNameLength = 53

var (
	namePattern  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	labelPattern = regexp.MustCompile(`^(([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)=([A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$`)
)

// ValidateName refuses a name that a MemberCluster cannot have.
func ValidateName(name string) error {
	if len(name) > maxNameLength || !namePattern.MatchString(name) {
		return fmt.Errorf("the cluster's name on the hub is at most %d characters of a-z, 0-9 and -: %q is none", maxNameLength, v1alpha1.Truncate(name, 2*maxNameLength))
	}
	return nil
}

// ParseLabels reads labels given as KEY=VALUE. The last value of a key counts.
func ParseLabels(given []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, text := range given {
		found := labelPattern.FindStringSubmatch(text)
		switch {
		case found == nil:
			return nil, fmt.Errorf("--label is a label as KEY=VALUE: %q is none", v1alpha1.Truncate(text, 200))
		case found[1] == v1alpha1.LabelMember || found[1] == v1alpha1.LabelDiscovered:
			return nil, fmt.Errorf("label %s is the hub's own: use another one", found[1])
		}
		labels[found[1]] = found[3]
	}
	return labels, nil
}

// ParseTimeout reads a number of seconds, or a duration such as 5m.
func ParseTimeout(text string) (time.Duration, error) {
	timeout, err := time.ParseDuration(text)
	if seconds, notNumber := strconv.ParseUint(text, 10, 31); notNumber == nil {
		timeout, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || timeout <= 0 {
		return 0, fmt.Errorf("--timeout is a number of seconds, or a duration such as 5m: %q is none", v1alpha1.Truncate(text, 50))
	}
	return timeout, nil
}

// Validate refuses arguments that do not go together.
func (r Request) Validate() error {
	if err := ValidateName(r.Name); err != nil {
		return err
	}
	switch {
	case r.Mode == Push && r.MemberContext == "":
		return fmt.Errorf("push needs --member: the kubectl context that leads to the cluster")
	case r.Mode == Pull && r.MemberContext != "" && !r.Install:
		return fmt.Errorf("pull with --member installs the agent with the join token: give its values, as -- --set image.tag=<version>, or leave --member out")
	case r.Mode == Pull && r.MemberContext == "" && r.Install:
		return fmt.Errorf("what follows -- is for helm, which needs --member: the kubectl context that leads to the cluster")
	case strings.ContainsAny(r.Server, "\" \n\\"):
		return fmt.Errorf("--server is the URL of the cluster's API server: %q is none", v1alpha1.Truncate(r.Server, 200))
	}
	return nil
}

// missingLabels returns those that an object does not have with that value, as KEY=VALUE.
func (r Request) missingLabels(has map[string]string) (missing []string) {
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		if value, ok := has[key]; !ok || value != r.Labels[key] {
			missing = append(missing, key+"="+r.Labels[key])
		}
	}
	return missing
}
