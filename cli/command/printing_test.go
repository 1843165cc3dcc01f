package command

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	"github.com/pelotech/ot-fleet/cli/versions"
)

// brokenOutput takes nothing, as a full disk.
type brokenOutput struct{}

func (brokenOutput) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// TestExitCodeOutlivesPrinting: pipelines branch on the verdict, whatever -o makes of the answer.
func TestExitCodeOutlivesPrinting(t *testing.T) {
	for name, test := range map[string]struct {
		output    string
		broken    bool
		code      exit.Code
		wantCode  exit.Code
		wantError string
	}{
		"a verdict, and no names":    {output: "name", code: exit.No, wantCode: exit.No, wantError: "the answer cannot be printed: -o name"},
		"yes, and no names":          {output: "name", wantCode: exit.Unanswered, wantError: "the command succeeded, but its output cannot be printed: -o name"},
		"a verdict, and a full disk": {output: "json", broken: true, code: exit.Held, wantCode: exit.Held, wantError: "no space left on device"},
		"a missing key":              {output: "jsonpath={.command}", code: exit.Held, wantCode: exit.Held},
		"a missing key, and yes":     {output: "jsonpath={.command}"},
		"not a list":                 {output: "jsonpath={.kind[*].x}", code: exit.NotYet, wantCode: exit.NotYet, wantError: "is not array or slice"},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, _ := newTestEnvironment("")
			if test.broken {
				e.IOStreams = genericiooptions.IOStreams{Out: brokenOutput{}, ErrOut: &bytes.Buffer{}}
			}
			var err error
			e.format, err = render.ParseFormat(test.output)
			require.NoError(t, err)
			check := func(err error, wantError string) {
				assert.Equal(t, test.wantCode, exit.CodeOf(err))
				if wantError != "" {
					require.ErrorContains(t, err, wantError)
				} else {
					assert.Empty(t, exit.MessageOf(err))
				}
			}
			check(e.show(versions.New(versions.Snapshot{Client: "v1.2.3"}), test.code), test.wantError)
			if test.output != "name" { // a rollout has one
				check(e.endWait(apitest.FleetDiskImage("ubuntu").Obj(), test.code, "it waits"), test.wantError)
			}
		})
	}
}
