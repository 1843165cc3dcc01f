//go:build linux

package chart_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/chart"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
)

const (
	agentNamespace = "ot-system"
	hubNamespace   = "ot-hub"
	imageNamespace = "images"
)

// hubValuesBesideAgent leaves to the agent's chart what both would bring.
var hubValuesBesideAgent = map[string]any{
	"crds":   map[string]any{"mailbox": false},
	"policy": map[string]any{"create": false, "createNamespace": false},
}

// server has both charts installed, as where the hub's own cluster is a member, and
// each twice; all tests share it.
var (
	adminClient  client.Client
	serverConfig *rest.Config
)

func TestMain(m *testing.M) {
	code, err := runWithServer(m.Run)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func runWithServer(run func() int) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute)
	defer cancel()
	plane, err := controlplane.Start(ctx, controlplane.Options{Name: "chart"})
	if err != nil {
		return 0, err
	}
	defer func() {
		if stopErr := plane.Stop(); err == nil {
			err = stopErr
		}
	}()
	if err := installCharts(ctx, plane.Config()); err != nil {
		return 0, err
	}
	return run(), nil
}

func installCharts(ctx context.Context, cfg *rest.Config) error {
	known := runtime.NewScheme()
	if err := scheme.AddToScheme(known); err != nil {
		return err
	}
	if err := v1alpha1.AddToScheme(known); err != nil {
		return err
	}
	var err error
	serverConfig = cfg
	quiet := rest.CopyConfig(cfg)
	quiet.WarningHandler = rest.NoWarnings{}
	if adminClient, err = client.New(quiet, client.Options{Scheme: known}); err != nil {
		return err
	}
	for _, crd := range []*unstructured.Unstructured{
		newStandInCRD("cdi.kubevirt.io", "v1beta1", "DataVolume", "datavolumes"),
		newStandInCRD("kubevirt.io", "v1", "VirtualMachine", "virtualmachines"),
		newStandInCRD("snapshot.storage.k8s.io", "v1", "VolumeSnapshot", "volumesnapshots"),
	} {
		if err := adminClient.Create(ctx, crd); err != nil {
			return fmt.Errorf("creating stand-in %s: %w", crd.GetName(), err)
		}
	}
	for range 2 {
		if err := chart.Install(ctx, cfg, agentChart, "agent", agentNamespace, nil); err != nil {
			return err
		}
		if err := chart.Install(ctx, cfg, hubChart, "hub", hubNamespace, hubValuesBesideAgent); err != nil {
			return err
		}
	}
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(imageNamespace)
	return adminClient.Create(ctx, namespace)
}

// newStandInCRD has the names of somebody else's kind and accepts every content: the
// admission policies look at metadata only.
func newStandInCRD(group, version, kind, plural string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1",
		"kind":       "CustomResourceDefinition",
		"metadata": map[string]any{
			"name":        plural + "." + group,
			"annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a stand-in"}, // groups of k8s.io need it
		},
		"spec": map[string]any{
			"group": group,
			"scope": "Namespaced",
			"names": map[string]any{"kind": kind, "listKind": kind + "List", "plural": plural, "singular": strings.ToLower(kind)},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{
					"type": "object", "x-kubernetes-preserve-unknown-fields": true,
				}},
			}},
		},
	}}
}

func newDataVolume(namespace, name, imageUID string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("cdi.kubevirt.io/v1beta1")
	object.SetKind("DataVolume")
	object.SetNamespace(namespace)
	object.SetName(name)
	if imageUID != "" {
		object.SetLabels(map[string]string{v1alpha1.LabelImageUID: imageUID})
	}
	return object
}

// createLedger creates the cluster's ledger and removes it when the test ends.
func createLedger(t *testing.T, budget int32, dataVolumes ...string) *v1alpha1.SyncLedger {
	t.Helper()
	ledger := &v1alpha1.SyncLedger{ObjectMeta: metav1.ObjectMeta{Namespace: agentNamespace, Name: v1alpha1.LedgerName}}
	require.NoError(t, adminClient.Create(t.Context(), ledger))
	t.Cleanup(func() {
		ctx := context.Background()
		if err := adminClient.Get(ctx, client.ObjectKeyFromObject(ledger), ledger); apierrors.IsNotFound(err) {
			return
		}
		ledger.Status.Slots = nil
		assert.NoError(t, adminClient.Status().Update(ctx, ledger))
		assert.NoError(t, adminClient.Delete(ctx, ledger))
	})
	ledger.Status = &v1alpha1.SyncLedgerStatus{Budget: budget, Slots: slotsFor(dataVolumes...)}
	require.NoError(t, adminClient.Status().Update(t.Context(), ledger))
	return ledger
}

func slotsFor(dataVolumes ...string) []v1alpha1.Slot {
	var all []v1alpha1.Slot
	for _, name := range dataVolumes {
		all = append(all, v1alpha1.Slot{
			Image:      v1alpha1.ImageKey{Namespace: imageNamespace, Name: "image-of-" + name, UID: "uid-1"},
			Revision:   "r1",
			Attempt:    1,
			DataVolume: name,
			StartedAt:  metav1.NewTime(time.Unix(1_700_000_000, 0)),
		})
	}
	return all
}
