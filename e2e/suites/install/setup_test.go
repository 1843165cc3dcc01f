//go:build linux

// Package install_test shows that a hub installs the agent by Helm in Clusters of Cluster API that
// opt in by label: values, foreign releases, versions, failures, and hubs that are killed or deposed
// in the middle. Real API servers show what Helm leaves behind. No kubelet runs the agents.
package install_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	clusterv1 "sigs.k8s.io/cluster-api/api/core/v1beta2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/harness/binaries"
	"github.com/pelotech/ot-fleet/e2e/harness/controlplane"
	"github.com/pelotech/ot-fleet/e2e/harness/faults"
	"github.com/pelotech/ot-fleet/e2e/harness/program"
	"github.com/pelotech/ot-fleet/e2e/harness/testenv"
	"github.com/pelotech/ot-fleet/hub/install"
)

const (
	// capiNamespace holds the Clusters of Cluster API on the hub.
	capiNamespace = "default"
	// agentRelease is the namespace and the release of the agent.
	agentRelease = "ot-agent"
	// edge opts in and out; quiet, which is the hub's own cluster, never does.
	edge, quiet = "edge", "quiet"
	// backoff after an attempt.
	backoff = 100 * time.Millisecond
	// everyone's values, and those of edge.
	valuesOfAll, valuesOfEdge = "ot-agent-values", "ot-agent-values-edge"
)

// plane is an API server with a client that has all permissions.
type plane struct {
	*controlplane.ControlPlane
	client.WithWatch
}

type testHub struct {
	hubPlane, edgePlane plane
	// edgeProxy is the hub's way to edge.
	edgeProxy *faults.Proxy
	Hub       *program.Hub
	// helmPath is the path of the helm CLI.
	helmPath string
}

var shared *testHub

func TestMain(m *testing.M) {
	testenv.RunTestsWith(m, func(ctx context.Context) (func() error, error) {
		shared = &testHub{}
		return shared.stopAll, shared.startAll(ctx)
	})
}

func (s *testHub) startAll(ctx context.Context) error {
	scheme := testenv.NewScheme()
	if err := errors.Join(clusterv1.AddToScheme(scheme), apiextensionsv1.AddToScheme(scheme)); err != nil {
		return err
	}
	programs, err := binaries.Ensure(ctx, binaries.Helm)
	if err != nil {
		return err
	}
	s.helmPath = programs[binaries.Helm]
	planes, err := controlplane.StartAll(ctx, controlplane.Options{Name: "hub"}, controlplane.Options{Name: edge})
	if err != nil {
		return err
	}
	for i, p := range []*plane{&s.hubPlane, &s.edgePlane} {
		p.ControlPlane = planes[i]
		if p.WithWatch, err = client.NewWithWatch(planes[i].Config(), client.Options{Scheme: scheme}); err != nil {
			return err
		}
	}
	if err := errors.Join(
		program.InstallClusterCRD(ctx, s.hubPlane.Config()),
		program.InstallHub(ctx, s.hubPlane.ControlPlane, map[string]any{
			"clusterAPI":    map[string]any{"enabled": true, "selector": "fleet=ot", "namespaces": []string{capiNamespace}},
			"installAgents": map[string]any{"enabled": true},
		}),
	); err != nil {
		return err
	}
	if s.edgeProxy, err = faults.StartTLSProxy(s.edgePlane.Config()); err != nil {
		return err
	}
	for name, cfg := range map[string]*rest.Config{edge: s.throughProxy(), quiet: s.hubPlane.Config()} {
		kubeconfig, err := controlplane.Kubeconfig(cfg)
		if err != nil {
			return err
		}
		cluster := &clusterv1.Cluster{
			ObjectMeta: metav1.ObjectMeta{Namespace: capiNamespace, Name: name, Labels: map[string]string{"fleet": "ot"}},
			Spec:       clusterv1.ClusterSpec{ControlPlaneEndpoint: clusterv1.APIEndpoint{Host: "127.0.0.1", Port: 6443}},
		}
		if err := program.CreateCluster(ctx, s.hubPlane, cluster, kubeconfig); err != nil {
			return err
		}
	}
	s.Hub, err = s.StartHub(ctx, "")
	return err
}

func (s *testHub) throughProxy() *rest.Config {
	cfg := s.edgePlane.Config()
	cfg.TLSClientConfig = rest.TLSClientConfig{}
	cfg.Host, cfg.CAData = s.edgeProxy.Endpoint()
	return cfg
}

func (s *testHub) StartHub(ctx context.Context, version string) (*program.Hub, error) {
	if err := program.DeleteHubLease(ctx, s.hubPlane); err != nil {
		return nil, err
	}
	return program.StartHub(ctx, s.hubPlane.ControlPlane, program.Options{LeaseDuration: program.LongLease, Version: version, Log: os.Getenv("OT_FLEET_HUB_LOG"), Args: []string{
		"--probe-interval=1s", "--cluster-api-selector=fleet=ot", "--cluster-api-namespaces=" + capiNamespace, "--cluster-api-own-names=" + capiNamespace, "--cluster-api-label-prefixes=" + v1alpha1.LabelInstallAgent,
		"--install-agents", "--install-backoff=" + backoff.String(),
	}})
}

func (s *testHub) stopAll() error {
	var errs []error
	if s.Hub != nil {
		errs = append(errs, s.Hub.Stop(time.Minute))
	}
	if s.edgeProxy != nil {
		errs = append(errs, s.edgeProxy.Close())
	}
	for _, p := range []plane{s.hubPlane, s.edgePlane} {
		if p.ControlPlane != nil {
			errs = append(errs, p.Stop())
		}
	}
	return errors.Join(errs...)
}

// optIn labels edge's Cluster until the test ends and then resets edge.
func (s *testHub) optIn(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { s.resetEdge(t) })
	s.setLabel(t, "true")
}

// setLabel sets the label of edge's Cluster; "" removes it.
func (s *testHub) setLabel(t *testing.T, value string) {
	t.Helper()
	s.updateObject(t, &clusterv1.Cluster{ObjectMeta: metav1.ObjectMeta{Namespace: capiNamespace, Name: edge}}, func(o client.Object) {
		labels := o.GetLabels()
		labels[v1alpha1.LabelInstallAgent] = value
		if value == "" {
			delete(labels, v1alpha1.LabelInstallAgent)
		}
		o.SetLabels(labels)
	})
}

// setAnnotation sets an annotation of edge's MemberCluster; "" removes it.
func (s *testHub) setAnnotation(t *testing.T, key, value string) {
	t.Helper()
	s.updateObject(t, &v1alpha1.MemberCluster{ObjectMeta: metav1.ObjectMeta{Name: edge}}, func(o client.Object) {
		annotations := o.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		if annotations[key] = value; value == "" {
			delete(annotations, key)
		}
		o.SetAnnotations(annotations)
	})
}

// updateObject changes an object of the hub, also in a test's Cleanup.
func (s *testHub) updateObject(t *testing.T, o client.Object, change func(client.Object)) {
	t.Helper()
	ctx := context.Background()
	require.NoError(t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := s.hubPlane.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		change(o)
		return s.hubPlane.Update(ctx, o)
	}))
}

// resetEdge opts edge out and removes values, annotations and the agent; the CRDs stay.
func (s *testHub) resetEdge(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	s.edgeProxy.SetBeforeHook(nil)
	s.edgeProxy.SetAfterHook(nil)
	s.setLabel(t, "")
	assert.Eventually(t, func() bool {
		m := &v1alpha1.MemberCluster{}
		return s.hubPlane.Get(ctx, client.ObjectKey{Name: edge}, m) == nil && m.Labels[v1alpha1.LabelInstallAgent] == "" &&
			meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentInstalled) == nil
	}, testenv.Patience, 50*time.Millisecond, "edge does not opt out")
	for _, key := range []string{v1alpha1.AnnotationAdoptAgent, v1alpha1.AnnotationDowngradeAgent, v1alpha1.AnnotationInstallAttempts, v1alpha1.AnnotationAcceptCluster} {
		s.setAnnotation(t, key, "")
	}
	for _, name := range []string{valuesOfAll, valuesOfEdge} {
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}}
		require.NoError(t, client.IgnoreNotFound(s.hubPlane.Delete(ctx, cm)))
	}
	s.runHelm(t, false, "uninstall", agentRelease, "--ignore-not-found", "--no-hooks")
}

// deleteCRDs deletes the product's CRDs from edge.
func (s *testHub) deleteCRDs(t *testing.T) {
	t.Helper()
	ctx := context.Background() // also in a test's Cleanup
	crds := &apiextensionsv1.CustomResourceDefinitionList{}
	require.NoError(t, s.edgePlane.List(ctx, crds))
	for i := range crds.Items {
		require.NoError(t, s.edgePlane.Delete(ctx, &crds.Items[i]))
	}
	deleted := assert.Eventually(t, func() bool {
		return s.edgePlane.List(ctx, crds) == nil && len(crds.Items) == 0
	}, testenv.Patience, tick, "CRDs remain")
	if !deleted {
		for i := range crds.Items {
			t.Logf("%s, deleted at %s, with finalizers %v: %v", crds.Items[i].Name, crds.Items[i].DeletionTimestamp, crds.Items[i].Finalizers, crds.Items[i].Status.Conditions)
		}
		t.FailNow()
	}
}

// runHelm runs the helm CLI on edge.
func (s *testHub) runHelm(t *testing.T, must bool, args ...string) {
	t.Helper()
	args = append(args, "--namespace", agentRelease, "--kubeconfig", s.edgePlane.Kubeconfig())
	output, err := exec.CommandContext(context.Background(), s.helmPath, args...).CombinedOutput()
	if must {
		require.NoError(t, err, "%s", output)
	}
}

// chartDir returns the directory of the agent's chart.
func chartDir(t *testing.T) string {
	t.Helper()
	folder, err := filepath.Abs(filepath.Join("..", "..", "..", "charts", "ot-agent"))
	require.NoError(t, err)
	return folder
}

// setValues stores chart values in a ConfigMap of the hub.
func (s *testHub) setValues(t *testing.T, name, text string) {
	t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name}, Data: map[string]string{"values.yaml": text}}
	err := s.hubPlane.Create(t.Context(), cm)
	if apierrors.IsAlreadyExists(err) {
		err = s.hubPlane.Update(t.Context(), cm)
	}
	require.NoError(t, err)
}

// awaitCondition waits for AgentInstalled of edge, with words in its message.
func (s *testHub) awaitCondition(t *testing.T, status metav1.ConditionStatus, reason string, words ...string) *v1alpha1.MemberCluster {
	t.Helper()
	return s.awaitConditionOf(t, edge, status, reason, words...)
}

func (s *testHub) awaitConditionOf(t *testing.T, member string, status metav1.ConditionStatus, reason string, words ...string) *v1alpha1.MemberCluster {
	t.Helper()
	return testenv.AwaitMember(t, s.hubPlane, member, string(status)+" "+reason+" "+strings.Join(words, ", ")+"; the hub's log is "+s.Hub.LogFile(), func(m *v1alpha1.MemberCluster) bool {
		c := meta.FindStatusCondition(m.Status.Conditions, v1alpha1.ConditionAgentInstalled)
		if c == nil || c.Status != status || c.Reason != reason {
			return false
		}
		for _, text := range words {
			if !strings.Contains(c.Message, text) {
				return false
			}
		}
		return true
	})
}

// awaitEvent waits for an event about edge.
func (s *testHub) awaitEvent(t *testing.T, reason, words string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var events eventsv1.EventList
		require.NoError(t, s.hubPlane.List(t.Context(), &events))
		for _, e := range events.Items {
			if e.Reason == reason && e.Regarding.Name == edge && strings.Contains(e.Note, words) {
				return true
			}
		}
		return false
	}, testenv.Patience, tick, "no event %s with %q; the hub's log is %s", reason, words, s.Hub.LogFile())
}

// joinMember registers a member that opts in by a Secret, until the test ends.
func (s *testHub) joinMember(t *testing.T, name string, cfg *rest.Config) {
	t.Helper()
	text, err := controlplane.Kubeconfig(cfg)
	require.NoError(t, err)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: program.HubNamespace, Name: name, Labels: map[string]string{v1alpha1.LabelMember: name, v1alpha1.LabelInstallAgent: "true"}},
		Data:       map[string][]byte{"kubeconfig": text},
	}
	require.NoError(t, s.hubPlane.Create(t.Context(), secret))
	t.Cleanup(func() { require.NoError(t, s.hubPlane.Delete(context.Background(), secret)) })
}

// awaitInstalled waits until an install has ended: its release is deployed, the Lease is released
// and the condition is True.
func (s *testHub) awaitInstalled(t *testing.T) *v1alpha1.MemberCluster {
	t.Helper()
	var number int
	var state, holder string
	ended := func() bool {
		lease := &coordinationv1.Lease{}
		number, state = s.newestRelease(t)
		if s.edgePlane.Get(t.Context(), client.ObjectKey{Namespace: agentRelease, Name: install.LeaseName}, lease) != nil {
			return false
		}
		holder = ptr.Deref(lease.Spec.HolderIdentity, "")
		return state == "deployed" && holder == ""
	}
	if !assert.Eventually(t, ended, testenv.Patience, tick) {
		require.Failf(t, "no install has ended", "release %d is %s, and %q holds the Lease; the hub's log is %s", number, state, holder, s.Hub.LogFile())
	}
	return s.awaitCondition(t, metav1.ConditionTrue, v1alpha1.ReasonInstalled)
}

// getDeployment returns the agent's Deployment in edge; nil for none.
func (s *testHub) getDeployment(t *testing.T) *appsv1.Deployment {
	t.Helper()
	o := &appsv1.Deployment{}
	err := s.edgePlane.Get(context.Background(), client.ObjectKey{Namespace: agentRelease, Name: agentRelease}, o)
	require.NoError(t, client.IgnoreNotFound(err))
	if err != nil {
		return nil
	}
	return o
}

// listReleases maps the numbers of a member's releases to their states.
func listReleases(t *testing.T, p plane) map[string]string {
	t.Helper()
	list := &corev1.SecretList{}
	require.NoError(t, p.List(context.Background(), list, client.MatchingLabels{"owner": "helm"}))
	all := map[string]string{}
	for i := range list.Items {
		all[list.Items[i].Labels["version"]] = list.Items[i].Labels["status"]
	}
	return all
}

// newestRelease returns the number and state of the newest release in edge.
func (s *testHub) newestRelease(t *testing.T) (number int, state string) {
	t.Helper()
	for key, value := range listReleases(t, s.edgePlane) {
		n, err := strconv.Atoi(key)
		require.NoError(t, err)
		if n > number {
			number, state = n, value
		}
	}
	return number, state
}
