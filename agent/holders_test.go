//go:build linux

package main

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	cdiv1 "kubevirt.io/containerized-data-importer-api/pkg/apis/core/v1beta1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pelotech/ot-fleet/agent/image"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/e2e/agent"
	"github.com/pelotech/ot-fleet/e2e/member"
	"github.com/pelotech/ot-fleet/e2e/scene"
)

// claims are the holders of this test: ConfigMaps that name an image. What they
// stand for, VirtualMachines, does not exist yet.
type claims struct {
	client client.Client
	mu     sync.Mutex
	// atLive is called whenever the holders are listed live, before they are.
	atLive func()
}

const claimLabel = "claims"

func (c *claims) list(ctx context.Context, img *v1alpha1.VMDiskImage, live bool) ([]image.Holder, error) {
	c.mu.Lock()
	atLive := c.atLive
	c.mu.Unlock()
	if live && atLive != nil {
		atLive()
	}
	var list corev1.ConfigMapList
	if err := c.client.List(ctx, &list, client.InNamespace(img.Namespace), client.MatchingLabels{claimLabel: img.Name}); err != nil {
		return nil, err
	}
	var holders []image.Holder
	for i := range list.Items {
		holders = append(holders, image.Holder{Name: list.Items[i].Namespace + "/" + list.Items[i].Name})
	}
	return holders, nil
}

func (c *claims) whenLive(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.atLive = do
}

func claim(ns, name, image string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Labels: map[string]string{claimLabel: image}}}
}

// touch has the agent look at an image again: it watches no ConfigMaps.
func touch(t *testing.T, s *scene.Scene, img *v1alpha1.VMDiskImage) {
	t.Helper()
	s.Change(t, img, func() {
		img.Labels = map[string]string{"touched": time.Now().Format("150405.000000000")}
	})
}

func TestImagesThatAreHeld(t *testing.T) {
	s, err := scene.Start(t.Context(), member.Options{Name: "held"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Stop()) })
	c := &claims{client: s.Client()}

	cfg, err := s.ControlPlane.ServiceAccountConfig(t.Context(), agent.Namespace, "ot-agent")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	mgr, err := setup(ctx, cfg, options{
		namespace: agent.Namespace, policy: types.NamespacedName{Namespace: agent.PolicyNamespace, Name: agent.PolicyName},
		metricsAddr: "0", healthAddr: "0", pprofAddr: "0",
	}, c.list)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- mgr.Start(ctx) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-done) })

	t.Run("they serve on until they are let go of", func(t *testing.T) {
		ns := s.Namespace(t)
		img, holder := s.Snapshotted(ns, "image", "/ok/100ms/image.qcow2"), claim(ns, "vm-1", "image")
		s.Create(t, img, holder)
		ready := s.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
		assert.EqualValues(t, 1, ready.Status.References.Count)
		assert.Equal(t, []string{ns + "/vm-1"}, ready.Status.References.Holders)
		assert.Nil(t, ready.Status.References.UnreferencedSince)

		require.NoError(t, s.Client().Delete(t.Context(), img))
		held := s.Eventually(t, img, scene.InPhase(v1alpha1.PhaseTerminating))
		assert.Equal(t, v1alpha1.ReasonReferenced, held.Status.Reason)
		assert.Contains(t, held.Status.Message, ns+"/vm-1")
		assert.NotNil(t, held.Status.Serving)
		dv := &cdiv1.DataVolume{}
		require.NoError(t, s.Client().Get(t.Context(), types.NamespacedName{Namespace: ns, Name: held.Status.Serving.PersistentVolumeClaim}, dv))
		assert.Nil(t, dv.DeletionTimestamp)

		require.NoError(t, s.Client().Delete(t.Context(), holder))
		touch(t, s, held)
		s.Gone(t, img)
		s.Gone(t, dv)
	})

	t.Run("one that is waited for is imported though it is to be deleted", func(t *testing.T) {
		s.SetPolicy(t, map[string]string{"concurrency": "0"})
		ns := s.Namespace(t)
		img, holder := s.Image(ns, "image", "/ok/100ms/image.qcow2"), claim(ns, "vm-1", "image")
		s.Create(t, holder, img)
		s.Eventually(t, img, scene.Because(v1alpha1.ReasonPaused))
		require.NoError(t, s.Client().Delete(t.Context(), img))
		s.Eventually(t, img, scene.InPhase(v1alpha1.PhaseTerminating))
		s.SetPolicy(t, map[string]string{"concurrency": "1"})
		s.Eventually(t, img, func(img *v1alpha1.VMDiskImage) bool { return img.Status.Serving != nil })
		require.NoError(t, s.Client().Delete(t.Context(), holder))
		touch(t, s, img)
		s.Gone(t, img)
	})

	t.Run("the mark is stored before holders are listed, and one that comes between is seen", func(t *testing.T) {
		ns := s.Namespace(t)
		img, holder := s.Image(ns, "image", "/ok/100ms/image.qcow2"), claim(ns, "late", "image")
		s.Create(t, img)
		s.Eventually(t, img, scene.InPhase(v1alpha1.PhaseSucceeded))
		var marks []string
		var once sync.Once
		c.whenLive(func() {
			now := &v1alpha1.VMDiskImage{}
			if s.Client().Get(context.Background(), client.ObjectKeyFromObject(img), now) == nil {
				marks = append(marks, string(now.Status.Phase))
			}
			once.Do(func() { _ = s.Client().Create(context.Background(), holder) })
		})
		require.NoError(t, s.Client().Delete(t.Context(), img))
		held := s.Eventually(t, img, scene.InPhase(v1alpha1.PhaseTerminating))
		c.whenLive(nil)
		assert.Equal(t, string(v1alpha1.PhaseDeleting), strings.Join(marks, ","), "stored when the holders were listed")
		assert.NotNil(t, held.Status.Serving, "nothing was torn down")
		require.NoError(t, s.Client().Delete(t.Context(), holder))
		touch(t, s, held)
		s.Gone(t, img)
	})
}
