// Package answers has a field of each kind that the read API encodes.
package answers

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// Color of a thing. It is one of a closed set.
type Color string

// Colors.
const (
	Red   Color = "red"
	Green Color = "green"
)

// Bit of a cell.
type Bit byte

// Bits.
const (
	// BitLow is the lowest.
	BitLow Bit = 1 << iota
	BitHigh
)

const (
	// Word is "quoted".
	Word = "a \"word\""
	// Wait is no number of TypeScript.
	Wait = time.Second
	// hidden is not exported.
	hidden = 1
)

// Base is embedded. Its second sentence is left out.
type Base struct {
	// Name of the thing,
	// on two lines. More.
	//
	// +kubebuilder:validation:MaxLength=3
	Name string `json:"name"`
}

// Thing has all of them; a comment may not end in */ too early.
type Thing struct {
	Base
	*Other
	Color     Color                  `json:"color"`
	Phase     v1alpha1.Phase         `json:"phase,omitempty"`
	ByColor   map[Color]int          `json:"byColor,omitempty"`
	ByName    map[string]readapi.Why `json:"-"`
	Labels    map[string]string      `json:"labels"`
	Count     *int64                 `json:"count,omitempty"`
	Limit     *int64                 `json:"limit"`
	At        metav1.Time            `json:"at"`
	Until     *metav1.Time           `json:"until,omitzero"`
	Size      resource.Quantity      `json:"size"`
	Share     *intstr.IntOrString    `json:"share,omitempty"`
	Shares    []intstr.IntOrString   `json:"shares"`
	Cells     []byte                 `json:"cells"`
	Bits      []Bit                  `json:"bits"`
	Values    readapi.Values         `json:"values"`
	Lines     map[string]readapi.Values
	Children  []Thing `json:"children"`
	Colors    []Color `json:"colors"`
	Anything  any     `json:"anything"`
	unknownTo int
}

// Other is embedded by a pointer.
type Other struct {
	Ok bool `json:"ok"`
}

// Silent has no JSON.
type Silent struct{ A int }

// unexported is not written.
type unexported struct {
	A int `json:"a"`
}

var _ = unexported{A: hidden + Thing{}.unknownTo}
