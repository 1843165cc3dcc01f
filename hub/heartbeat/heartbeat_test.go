package heartbeat_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/hub/heartbeat"
)

func newHeartbeat(copyVersion string, sequence, seconds int64) mailbox.Heartbeat {
	return mailbox.Heartbeat{CopyVersion: copyVersion, Sequence: sequence, ObservedAt: metav1.NewTime(time.Unix(seconds, 0))}
}

// annotationsOf replicas whose Leases say this.
func annotationsOf(texts map[string]string) map[string]map[string]string {
	all := map[string]map[string]string{}
	for replica, text := range texts {
		all[replica] = map[string]string{heartbeat.Annotation: text}
	}
	return all
}

func TestPublishedIsReceived(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var published heartbeat.Published
		want := map[string]mailbox.Heartbeat{}
		for range rapid.IntRange(0, 20).Draw(t, "changes") {
			member := rapid.StringMatching("[a-z]([-.a-z0-9]{0,9}[a-z0-9])?").Draw(t, "member")
			if rapid.Bool().Draw(t, "removed") {
				published.Set(member, nil)
				delete(want, member)
				continue
			}
			h := newHeartbeat(rapid.StringMatching("[0-9]{1,19}").Draw(t, "copy"), rapid.Int64Range(1, math.MaxInt64).Draw(t, "sequence"), rapid.Int64Range(0, 1<<40).Draw(t, "time"))
			published.Set(member, &h)
			want[member] = h
		}
		received := heartbeat.NewReceived()
		received.SetReplicas(annotationsOf(map[string]string{"a": published.Text()}))
		for member, h := range want {
			assert.Equal(t, h, received.FindHeartbeat(member, h.CopyVersion))
			assert.Zero(t, received.FindHeartbeat(member, h.CopyVersion+"0"), "of another state of the copy")
		}
		assert.Equal(t, len(want), strings.Count(published.Text(), "\n"))
	})
}

// Two replicas may sync one member for a moment, and the Lease of a dead one stays for a while.
func TestLatestHeartbeatOfCopyCounts(t *testing.T) {
	received := heartbeat.NewReceived()
	received.SetReplicas(annotationsOf(map[string]string{"a": "m 7 20 200\n", "b": "m 7 21 210\n", "c": "m 8 30 300\n"}))
	assert.Equal(t, newHeartbeat("7", 21, 210), received.FindHeartbeat("m", "7"))
	assert.Equal(t, newHeartbeat("8", 30, 300), received.FindHeartbeat("m", "8"))
	assert.Zero(t, received.FindHeartbeat("m", ""))
	assert.Zero(t, received.FindHeartbeat("n", "7"))
}

func TestLaterHeartbeatsAreNotified(t *testing.T) {
	received := heartbeat.NewReceived()
	var changed []string
	received.OnChange(func(member string) { changed = append(changed, member) })
	for _, step := range []struct {
		texts map[string]string
		want  []string
	}{
		{map[string]string{"a": "m 7 20 200\nn 3 4 200\n"}, []string{"m", "n"}},
		{map[string]string{"a": "m 7 20 200\nn 3 4 200\n"}, nil},
		{map[string]string{"a": "m 7 20 200\nn 3 5 220\n"}, []string{"n"}},
		{map[string]string{"a": "n 3 5 220\n"}, nil},
		{map[string]string{"a": "n 3 5 220\n", "b": "m 9 30 240\n"}, []string{"m"}},
		{nil, nil},
	} {
		changed = nil
		received.SetReplicas(annotationsOf(step.texts))
		assert.ElementsMatch(t, step.want, changed)
	}
}

func TestUnreadableLinesAreSkipped(t *testing.T) {
	received := heartbeat.NewReceived()
	received.SetReplicas(annotationsOf(map[string]string{"a": "\n \nm\nm \nn 7\no 7 x 1\np 7 1 x\nq  1 1\nr 7 99999999999999999999 1\ns 7 1 1"}))
	for _, member := range []string{"", "m", "n", "o", "p", "q", "r"} {
		assert.Zero(t, received.FindHeartbeat(member, "7"), member)
	}
	assert.Equal(t, newHeartbeat("7", 1, 1), received.FindHeartbeat("s", "7"))
}

// A replica of an older version may be elected at any time, and would take all members for silent.
func TestHeartbeatsAreReadByAllOrPublishedByNobody(t *testing.T) {
	received := heartbeat.NewReceived()
	assert.False(t, received.ReadByAll(), "no Lease was read")
	received.SetReplicas(annotationsOf(map[string]string{"a": "", "b": "m 7 20 200\n"}))
	assert.True(t, received.ReadByAll())
	older := annotationsOf(map[string]string{"a": "", "b": "m 7 20 200\n"})
	older["c"] = map[string]string{"pelotech.ot/version": "v1"}
	received.SetReplicas(older)
	assert.False(t, received.ReadByAll())
	assert.Equal(t, newHeartbeat("7", 20, 200), received.FindHeartbeat("m", "7"), "what was published stays true")
}

func TestPublishedHasBounds(t *testing.T) {
	const maxAnnotations = 256 << 10 // of the API server
	var published heartbeat.Published
	members := 0
	for ; published.HasRoom(fmt.Sprintf("member-%d", members)); members++ {
		h := newHeartbeat("9223372036854775807", math.MaxInt64, 1<<40)
		published.Set(fmt.Sprintf("member-%d", members), &h)
	}
	assert.Less(t, len(published.Text()), maxAnnotations)
	assert.Greater(t, members, 2500)
	assert.True(t, published.HasRoom("member-1"), "it replaces its own")
	published.Set("member-1", nil)
	assert.True(t, published.HasRoom("member-x"))
}
