//go:build linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// etcdBatchSize is the number of images in one etcd transaction, which takes 128. They are of different
// members: objects of one transaction have the same resourceVersion, and a watch that resumes
// there must have seen no more than one of them.
const etcdBatchSize = 100

func plainImage(namespace string, n int) *v1alpha1.VMDiskImage {
	name := fmt.Sprintf("image-%05d", n)
	return &v1alpha1.VMDiskImage{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.VMDiskImageSpec{
			Name: name, SourceType: v1alpha1.SourceHTTP, URL: "https://images.example.com/" + name + ".qcow2", DiskSize: resource.MustParse("24Gi"),
		},
	}
}

// fillMembers creates the members' images and waits until the plain hub has reconciled all of them. The
// API server writes the first one; the others are written to etcd in its stored form, which is
// minutes faster.
func (p *plainSetup) fillMembers(ctx context.Context) error {
	first := plainImage(p.of[0], 0)
	if err := p.inMember.Create(ctx, first); err != nil {
		return err
	}
	first.Status = v1alpha1.VMDiskImageStatus{
		ObservedGeneration: first.Generation, Phase: v1alpha1.PhaseSucceeded, Reason: v1alpha1.ReasonReady, Message: "ready", Revision: first.Spec.Revision(),
		Conditions: []metav1.Condition{{
			Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: string(v1alpha1.ReasonReady), Message: "ready", LastTransitionTime: metav1.Now(),
		}},
	}
	if err := p.inMember.Status().Update(ctx, first); err != nil {
		return err
	}
	key := func(namespace, name string) string {
		return "/registry/" + v1alpha1.GroupVersion.Group + "/vmdiskimages/" + namespace + "/" + name
	}
	var stored struct{ KVs []struct{ Value []byte } }
	if err := p.callEtcd(ctx, "range", map[string]any{"key": []byte(key(first.Namespace, first.Name))}, &stored); err != nil {
		return err
	}
	if len(stored.KVs) != 1 {
		return fmt.Errorf("reading %s from etcd: there are %d", key(first.Namespace, first.Name), len(stored.KVs))
	}
	like := string(stored.KVs[0].Value)
	group, putting := errgroup.WithContext(ctx)
	group.SetLimit(concurrentWriters)
	for n := range imagesPerMember {
		for from := 0; from < len(p.of); from += etcdBatchSize {
			group.Go(func() error {
				var puts []map[string]any
				for i, member := range p.of[from:min(from+etcdBatchSize, len(p.of))] {
					if n == 0 && from+i == 0 {
						continue
					}
					img := plainImage(member, n)
					uid := fmt.Sprintf("00000000-0000-4000-8000-%06d%06d", from+i, n)
					value := strings.NewReplacer(first.Namespace, member, first.Name, img.Name, string(first.UID), uid).Replace(like)
					puts = append(puts, map[string]any{"requestPut": map[string]any{"key": []byte(key(member, img.Name)), "value": []byte(value)}})
				}
				return p.callEtcd(putting, "txn", map[string]any{"success": puts}, nil)
			})
		}
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("putting images into etcd: %w", err)
	}
	return p.awaitCondition(ctx, 500*time.Millisecond, "the plain hub has seen all images", func(ctx context.Context) (bool, error) {
		seen := 0
		for _, r := range p.replicas {
			state, err := r.running.(*plainReplica).readState(ctx)
			if err != nil {
				return false, err
			}
			seen += state.Seen
		}
		return seen >= len(p.of)*imagesPerMember, nil
	})
}

// callEtcd calls the JSON gateway of the members' etcd.
func (p *plainSetup) callEtcd(ctx context.Context, what string, ask map[string]any, answer any) error {
	body, err := json.Marshal(ask)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, p.members.EtcdURL()+"/v3/kv/"+what, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("etcd answered %s: %s", response.Status, text)
	case answer == nil:
		return nil
	}
	return json.Unmarshal(text, answer)
}
