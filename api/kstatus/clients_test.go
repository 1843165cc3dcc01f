package kstatus_test

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
	"sigs.k8s.io/yaml"

	"github.com/pelotech/ot-fleet/api/apitest/schemacheck"
)

// Health of Argo CD.
const (
	healthy     = "Healthy"
	progressing = "Progressing"
	suspended   = "Suspended"
	degraded    = "Degraded"
)

// verdict is what clients that wait make of a status.
type verdict struct {
	kstatus status.Status // Flux, Helm 4
	argoCD  string
}

var (
	isDone       = verdict{status.CurrentStatus, healthy}
	isInProgress = verdict{status.InProgressStatus, progressing}
	isHeld       = verdict{status.InProgressStatus, suspended}
	hasFailed    = verdict{status.FailedStatus, degraded}
	isLeaving    = verdict{status.TerminatingStatus, progressing}
)

// verdicts by kind and golden status.
var verdicts = map[string]map[string]verdict{
	"FleetDiskImage": {
		"AwaitingApproval": isHeld, "Paused": isHeld,
		"AwaitingClusters": isInProgress, "MaxConcurrency": isInProgress, "MinSuccessTime": isInProgress, "OfflineClusters": isInProgress, "WaitingForWindow": isInProgress,
		"Paused, one in progress": isInProgress, "AwaitingClusters, one blocked for a moment": isInProgress,
		"MaxFailures": hasFailed, "MaxFailures, one in progress": hasFailed, "NoClusters": hasFailed, "PlanFull": hasFailed, "ClustersBlocked": hasFailed,
		"NameConflict": hasFailed, "SelectorInvalid": hasFailed,
		"RolledOut": isDone, "RolledOut, one offline": isDone, "RolledOut, one failed within the limit": isDone,
		"DeletingImages": isLeaving,
		"FieldsUnknown":  hasFailed, "FieldsUnknown, for a moment": isInProgress, "FieldsUnknown, one in progress": isInProgress,
		"AwaitingApproval, of a source": isHeld, "RolledOut, with overrides": isDone,
		"LabelMissing": hasFailed, "LabelMissing, for a moment": isInProgress,
		"SourceInvalid": hasFailed, "SourceInvalid, one in progress": isInProgress,
	},
	"PruneReport": {
		"Scheduled": isDone, "Suspended": isDone, "Reported": isDone,
		"AwaitingAnswers": isInProgress,
		"NoClusters":      hasFailed, "ReportTooLarge": hasFailed, "ScheduleInvalid": hasFailed,
	},
	"ImagePrune": {
		"AwaitingMembers": isInProgress, "ReportIncomplete": isInProgress, "UndoWindow": isInProgress,
		"Pruned": isDone, "PartlyPruned": isDone, "Undone": isDone, "Deadline has passed": isDone,
		"ReportMissing":         hasFailed,
		"Undone, being deleted": isLeaving,
	},
	"MemberCluster": {
		"Ready":          isDone,
		"NeverConnected": isInProgress, "CredentialsMissing": isInProgress, "Unreachable": isInProgress, "Silent": isInProgress,
		"AwaitingAgent": isInProgress, "AwaitingAcceptance": isInProgress, "Revoking": isInProgress, "Installing": isInProgress,
		"NotAcknowledged": isInProgress, "VersionTooOld, the hub upgrades": isInProgress, "InstallFailed": isInProgress, "NamespaceMissing": isInProgress, "NamespaceTerminating": isInProgress,
		"ConnectionChanged": isInProgress, "ConnectionChanged, no report yet": isInProgress,
		"Quarantined": hasFailed, "AnotherCluster": hasFailed, "DuplicateCluster": hasFailed, "TwoAgents": hasFailed, "JoinTokenExpired": hasFailed, "Revoked": hasFailed,
		"InstallAttemptsExhausted": hasFailed, "NamespaceTaken": hasFailed,
		"ForeignAgent": hasFailed, "PolicyHeld": hasFailed, "AnotherHub": hasFailed, "VersionTooOld": hasFailed, "ReportOversized": hasFailed,
	},
	"VMDiskImage": {
		"WaitingForSlot": isInProgress, "Paused": isInProgress, "Importing": isInProgress, "BackingOff": isInProgress, "New version": isInProgress,
		"StorageClassMissing": hasFailed, "NotFound": hasFailed,
		"Ready": isDone, "UndoWindow": isDone,
		"Referenced": isLeaving, "Deleted": isLeaving,
	},
	"VirtualMachine": {
		"WaitingForImage": isInProgress, "CloningRootDisk": isInProgress, "Starting": isInProgress,
		"ImageMissing": hasFailed,
		"Running":      isDone,
	},
}

// TestClientsThatWait reads the statuses that the pure packages decide as Flux, Helm 4 and
// Argo CD do. A phase of any kind without a recorded status fails it.
func TestClientsThatWait(t *testing.T) {
	health := loadHealthScript(t)
	for kind, want := range verdicts {
		objects := readGoldens(t, kind)
		assert.ElementsMatch(t, slices.Collect(maps.Keys(want)), slices.Collect(maps.Keys(objects)), "%s: golden statuses and their verdicts", kind)
		phases := map[string]bool{}
		for name, want := range want {
			object := objects[name]
			if object == nil {
				continue
			}
			phase, _, _ := unstructured.NestedString(object, "status", "phase")
			phases[phase] = true
			assert.Equal(t, want, verdict{computeStatus(t, object).Status, health.check(t, object).status}, "%s: %s", kind, name)
			testStaleStatus(t, kind+": "+name, object, health)
		}
		for _, phase := range schemacheck.Phases(t, kind) {
			assert.True(t, phases[phase], "%s: no golden status has phase %s", kind, phase)
		}
	}
}

// testStaleStatus reads a status of a former spec, and of a spec that nobody observed yet.
func testStaleStatus(t *testing.T, name string, object map[string]any, health *healthScript) {
	t.Helper()
	if metadata, _ := object["metadata"].(map[string]any); metadata["deletionTimestamp"] != nil {
		return
	}
	edited := runtime.DeepCopyJSON(object)
	require.NoError(t, unstructured.SetNestedField(edited, int64(99), "metadata", "generation"))
	created := runtime.DeepCopyJSON(object)
	created["status"] = map[string]any{"observedGeneration": int64(-1)} // the default of the API server
	for _, stale := range []map[string]any{edited, created} {
		got := verdict{computeStatus(t, stale).Status, health.check(t, stale).status}
		assert.Equal(t, isInProgress, got, "%s, not observed yet: %v", name, stale["status"])
	}
}

// Messages reach the person who waits.
func TestMessagesOfClients(t *testing.T) {
	health := loadHealthScript(t)
	images := readGoldens(t, "FleetDiskImage")
	for name, want := range map[string]string{
		"MaxFailures": "See status.failing", "AwaitingApproval": "kubectl patch fdi", "Paused": "spec.rollout.paused", "AwaitingClusters": "in progress", "RolledOut": "has images/",
	} {
		assert.Contains(t, health.check(t, images[name]).message, want, name)
	}
	assert.Contains(t, computeStatus(t, images["MaxFailures"]).Message, "See status.failing")
	assert.Contains(t, computeStatus(t, images["AwaitingApproval"]).Message, "kubectl patch fdi")
}

// Objects that only the programs write do not keep an Argo CD application in progress.
func TestHealthOfOtherKinds(t *testing.T) {
	health := loadHealthScript(t)
	for _, kind := range []string{"PruneReportPage", "SyncLedger", "ClusterPlan", "MemberLink"} {
		assert.Equal(t, healthy, health.check(t, map[string]any{"kind": kind, "metadata": map[string]any{"generation": int64(2)}}).status, kind)
	}
}

func readGoldens(t *testing.T, kind string) map[string]map[string]any {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", kind+".yaml"))
	require.NoError(t, err)
	objects := map[string]map[string]any{}
	require.NoError(t, yaml.Unmarshal(text, &objects))
	for _, object := range objects {
		for _, path := range [][]string{{"metadata", "generation"}, {"status", "observedGeneration"}} {
			number, _, err := unstructured.NestedFieldNoCopy(object, path...)
			require.NoError(t, err)
			float, ok := number.(float64)
			require.True(t, ok, "%v", path)
			require.NoError(t, unstructured.SetNestedField(object, int64(float), path...))
		}
	}
	return objects
}

func computeStatus(t *testing.T, object map[string]any) *status.Result {
	t.Helper()
	result, err := status.Compute(&unstructured.Unstructured{Object: object})
	require.NoError(t, err)
	return result
}

// healthScript is docs/argocd/health.lua, run as Argo CD does: without libraries that reach
// the machine.
type healthScript struct{ text string }

type healthResult struct{ status, message string }

func loadHealthScript(t *testing.T) *healthScript {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "argocd", "health.lua"))
	require.NoError(t, err)
	return &healthScript{string(text)}
}

func (s *healthScript) check(t *testing.T, object map[string]any) healthResult {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	state.Push(state.NewFunction(lua.OpenBase))
	state.Call(0, 0)
	state.SetGlobal("obj", toLua(state, object))
	require.NoError(t, state.DoString(s.text))
	table, ok := state.Get(-1).(*lua.LTable)
	require.True(t, ok, "the script returns no table")
	return healthResult{lua.LVAsString(table.RawGetString("status")), lua.LVAsString(table.RawGetString("message"))}
}

// toLua converts a value of JSON.
func toLua(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case nil:
		return lua.LNil
	case string:
		return lua.LString(v)
	case bool:
		return lua.LBool(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		table := state.NewTable()
		for _, element := range v {
			table.Append(toLua(state, element))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, element := range v {
			table.RawSetString(key, toLua(state, element))
		}
		return table
	default:
		panic(fmt.Sprintf("%T is no value of JSON", value))
	}
}
