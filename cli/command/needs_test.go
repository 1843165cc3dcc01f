package command

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestFlagsWithoutEffectAreRefused goes through all flags that need another: a pipeline that gives
// --timeout, and forgets --wait, would go on before the rollout has ended.
func TestFlagsWithoutEffectAreRefused(t *testing.T) {
	wantNeeded := []string{
		"doctor --probe-image --probe", "events --timeout --watch", "events cluster --timeout --watch", "events image --timeout --watch", "get images --all-namespaces --live",
		"image publish --allow-unknown --wait", "image publish --timeout --wait", "image publish --until-hold --wait", "preload --allow-unknown --before", "prune report --time-zone --schedule",
		"prune status --timeout --watch", "rollout status --timeout --watch",
		"why cluster --timeout --watch", "why image --timeout --watch", "why machine --timeout --watch", "why rollout --timeout --watch",
	}
	var needed []string
	root, _ := newCompletedRoot()
	for _, listed := range allCommands(root) {
		name := strings.TrimPrefix(listed.CommandPath(), "kubectl ot ")
		listed.Flags().VisitAll(func(flag *pflag.Flag) {
			for _, need := range flag.Annotations[needsAnnotation] {
				needed = append(needed, name+" --"+flag.Name+" --"+need)
				value := map[string]string{"duration": "5m", "bool": "true", "string": "a"}[flag.Value.Type()]
				needValue := map[string]string{"bool": "true", "string": "a"}[listed.Flags().Lookup(need).Value.Type()]
				check := func(args ...string) error {
					fresh, _ := newCompletedRoot()
					cmd, _, err := fresh.Find(strings.Fields(name))
					require.NoError(t, err)
					require.NoError(t, cmd.ParseFlags(args))
					return preRun(cmd)
				}
				require.EqualError(t, check("--"+flag.Name+"="+value), "kubectl ot "+name+" --"+flag.Name+" has no effect without --"+need+": add that, or leave it out")
				require.NoError(t, check("--"+flag.Name+"="+value, "--"+need+"="+needValue))
				require.NoError(t, check(), "by their defaults")
			}
		})
	}
	slices.Sort(needed)
	assert.Equal(t, wantNeeded, needed)
}
