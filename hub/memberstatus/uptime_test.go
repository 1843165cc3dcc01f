package memberstatus_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/memberstatus"
)

// uptimeWorld is a member that goes offline, into quarantine and waits for windows.
type uptimeWorld struct {
	input memberstatus.Input
	// silent: its report is old. closed, higher: it waits for a window, or a later one allows more.
	silent, closed, higher bool
	// online and open are what it was in each minute. planned is when images of its plan were.
	online, open []bool
	planned      map[int]bool
}

func (w *uptimeWorld) minute() int { return len(w.online) }

// step lets a minute pass after the status was computed and stored.
func (w *uptimeWorld) step() v1alpha1.MemberUptime {
	v := &w.input
	received := v.Now
	if w.silent {
		received = v.Now.Add(-time.Hour)
	}
	v.ReceivedAt, v.WindowOpensAt, v.Report.InForce = &received, time.Time{}, nil
	later := metav1.NewTime(v.Now.Add(time.Hour))
	if w.closed {
		v.WindowOpensAt = later.Time
	}
	if w.higher {
		v.Report.InForce = &v1alpha1.InForceConcurrency{Concurrency: 1, OpensAt: &later}
	}
	v.Member.Status, _ = memberstatus.Compute(*v)
	isOnline := !w.silent && v.Member.Spec.Quarantine == nil
	w.online, w.open = append(w.online, isOnline), append(w.open, isOnline && !w.closed && !w.higher)
	v.Now = v.Now.Add(time.Minute)
	if v.Member.Status.Uptime == nil {
		return v1alpha1.MemberUptime{}
	}
	return *v.Member.Status.Uptime
}

// countSince returns how many minutes were so since one.
func countSince(minutes []bool, first int) (n time.Duration) {
	for _, was := range minutes[first:] {
		if was {
			n += time.Minute
		}
	}
	return n
}

// What is recorded is what was, for each image of the plan that was planned since the first record.
func TestUptimeIsRecorded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &uptimeWorld{input: healthyInput(), planned: map[int]bool{}}
		w.input.Now, w.input.Plan.Images = now, nil
		step := func() {
			uptime := w.step()
			for minute := range w.planned {
				at := now.Add(time.Duration(minute) * time.Minute)
				for name, list := range map[string]struct {
					stretches []v1alpha1.MemberStretch
					was       []bool
				}{"online": {uptime.Online, w.online}, "open": {uptime.Open, w.open}} {
					require.LessOrEqual(t, len(list.stretches), 2+2*len(w.planned))
					if len(list.stretches) > 0 {
						got := v1alpha1.StretchTimeSince(list.stretches, at, w.input.Now.Add(-time.Minute))
						want := countSince(list.was[:w.minute()-1], minute)
						require.LessOrEqual(t, got, want, name)
						if name == "online" || !at.Before(list.stretches[0].From.Time) {
							require.Equal(t, want, got, "%s since minute %d of %d: %v", name, minute, w.minute(), list.stretches)
						}
					} else {
						require.NotContains(t, list.was, false, name)
					}
				}
			}
		}
		step()
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { step() },
			"an image is planned": func(t *rapid.T) {
				w.planned[w.minute()] = true
				at := metav1.NewTime(w.input.Now)
				w.input.Plan.Images = append(w.input.Plan.Images, v1alpha1.PlannedImage{Namespace: "images", Name: fmt.Sprint(w.minute()), PlannedAt: &at})
			},
			"offline": func(*rapid.T) { w.silent = !w.silent },
			"windows": func(*rapid.T) { w.closed = !w.closed },
			"higher":  func(*rapid.T) { w.higher = !w.higher },
			"quarantine": func(*rapid.T) {
				if w.input.Member.Spec.Quarantine == nil {
					w.input.Member.Spec.Quarantine = &v1alpha1.MemberQuarantine{Reason: "it lies"}
				} else {
					w.input.Member.Spec.Quarantine = nil
				}
			},
			"time": func(*rapid.T) {},
		})
	})
}

// A hub whose clock was ahead hands over: the stretch that it began counts from now on.
func TestUptimeThatBeganAhead(t *testing.T) {
	w := &uptimeWorld{input: healthyInput()}
	w.input.Now = now
	w.step()
	w.silent = true
	w.step()
	w.silent = false
	w.step()
	w.input.Now = now.Add(-time.Hour)
	uptime := w.step()
	last := uptime.Online[len(uptime.Online)-1]
	require.False(t, last.From.After(now.Add(-time.Hour)), last.From)
}
