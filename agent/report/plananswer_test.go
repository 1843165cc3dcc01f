package report

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

func TestAnsweredPlan(t *testing.T) {
	version := func(sequence int64, hash string) *v1alpha1.PlanVersion {
		return &v1alpha1.PlanVersion{Epoch: 1, Sequence: sequence, Hash: hash}
	}
	none := &v1alpha1.PlanVersion{}
	// after returns the answer to plans that were acknowledged one after another.
	after := func(plans ...*v1alpha1.PlanVersion) (answers []PlanAnswer) {
		last := PlanAnswer{}
		for _, plan := range plans {
			last = last.NextAnswer(plan)
			answers = append(answers, last)
		}
		return answers
	}
	for _, tt := range []struct {
		name  string
		plans []*v1alpha1.PlanVersion
		pages []int // the plan that each answers, from 1; 0 for none
		want  *v1alpha1.PlanVersion
	}{
		{"no plan", []*v1alpha1.PlanVersion{nil}, []int{1, 1}, nil},
		{"no images", []*v1alpha1.PlanVersion{version(1, "")}, nil, version(1, "")},
		{"all pages are current", []*v1alpha1.PlanVersion{version(1, ""), version(2, "")}, []int{2, 2}, version(2, "")},
		{"one page is to be rewritten", []*v1alpha1.PlanVersion{version(1, ""), version(2, "")}, []int{2, 1, 2}, version(1, "")},
		{"the earliest of three", []*v1alpha1.PlanVersion{version(1, ""), version(2, ""), version(3, "")}, []int{3, 1, 2}, version(1, "")},
		{"one page may show anything", []*v1alpha1.PlanVersion{version(1, ""), version(2, "")}, []int{2, 0}, none},
		{"one page is from before any plan", []*v1alpha1.PlanVersion{nil, version(1, "")}, []int{2, 1}, none},
		{"the version went back", []*v1alpha1.PlanVersion{version(5, ""), version(4, "")}, []int{2, 1}, none},
		{"the version went back and rose again", []*v1alpha1.PlanVersion{version(5, ""), version(4, ""), version(5, "")}, []int{3, 1}, none},
		{"one page is from after it went back", []*v1alpha1.PlanVersion{version(5, ""), version(4, ""), version(5, "")}, []int{3, 2}, version(4, "")},
		{"one version of two hubs", []*v1alpha1.PlanVersion{version(5, "a"), version(5, "b")}, []int{2, 1}, none},
		{"a higher epoch", []*v1alpha1.PlanVersion{version(5, ""), {Epoch: 2, Sequence: 1}}, []int{2, 1}, version(5, "")},
	} {
		t.Run(tt.name, func(t *testing.T) {
			answers := after(tt.plans...)
			var pages []PlanAnswer
			for _, n := range tt.pages {
				if n == 0 {
					pages = append(pages, PlanAnswer{})
				} else {
					pages = append(pages, answers[n-1])
				}
			}
			assert.Equal(t, tt.want, AnsweredPlan(answers[len(answers)-1], pages))
		})
	}
}

func TestPlanAnswerIsFor(t *testing.T) {
	plan := &v1alpha1.PlanVersion{Epoch: 1, Sequence: 1, Hash: "a"}
	assert.False(t, PlanAnswer{}.IsFor(nil), "the zero answer")
	assert.True(t, PlanAnswer{}.NextAnswer(nil).IsFor(nil))
	assert.False(t, PlanAnswer{}.NextAnswer(nil).IsFor(plan))
	assert.True(t, PlanAnswer{}.NextAnswer(plan).IsFor(plan.DeepCopy()))
	assert.False(t, PlanAnswer{}.NextAnswer(plan).IsFor(nil))
	assert.False(t, PlanAnswer{}.NextAnswer(plan).IsFor(&v1alpha1.PlanVersion{Epoch: 1, Sequence: 1, Hash: "b"}))
}
