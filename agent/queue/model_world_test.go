package queue_test

import (
	"fmt"
	"math/bits"
	"strings"
)

// The model knows an attempt of an image by a number, its name: image × attempts
// + attempt - 1. A set of names is a bit mask.
const (
	mostImages = 3
	mostNames  = 6
	noWriter   = 255
)

// Life of an image.
const (
	alive uint8 = iota
	deleting
	gone
)

// Outcomes as the model stores them.
const (
	noOutcome uint8 = iota
	succeeded
	failed
)

// Storage of an attempt. Failing imports transfer: CDI starts over by itself.
// Removing and clearing: the DataVolume is gone, its claim and Pods are not; the
// former still transfers.
const (
	absent uint8 = iota
	running
	failing
	complete
	removing
	clearing
)

type image struct {
	life uint8
	// begun and ended are lastAttempt and attemptEnded, outcome is that of ended.
	begun, ended, outcome uint8
	// late is a status write that is under way: what it will say, by live reads
	// that are already old. The guard by resourceVersion makes one per image
	// enough: of two, one fails. 0 for none, else kind × 16 + attempt.
	late uint8
}

// Kinds of status write.
const (
	sayBegun uint8 = iota + 1
	saySucceeded
	sayFailed
)

type volume struct{ state, created uint8 }

type ledger struct{ exists, budget, listed, ended uint8 }

// writer is what an agent holds in memory on its way from a read of the ledger to
// the last of the writes that follow from it.
type writer struct {
	pc uint8
	ledger
	// fresh: the ledger was not written since; what a resourceVersion tells.
	fresh bool
	// budget asked for by the policy when the ledger was read, and the most that
	// it asked for since.
	asked, most uint8
	facts       [mostNames]uint8
	candidates  [mostImages]uint8
	at          uint8
	// unlisted are yet to be judged; wanted and strays are those judged.
	unlisted, wanted, strays uint8
	// create is what is yet to be created. knewBegun are those of it whose image
	// said already that they were begun.
	create, knewBegun uint8
}

// world is a state of everything. Resource versions are left out: all that
// counts of one is whether it has changed since somebody read it.
type world struct {
	ledger
	cached  ledger // the parameter of the admission policy
	images  [mostImages]image
	volumes [mostNames]volume
	writers [2]writer
	policy  uint8 // how many changes of the budget there were
	// Faults by hand so far, and what runs unlisted because of one.
	lostVolumes, lostLedgers, debt uint8
}

// scenario bounds a world and says what can happen in it.
type scenario struct {
	images   int
	attempts int // retryLimit + 1
	// writers: 2 are an agent that was paused past its lease, and its successor.
	// With 1, a crash and the start of another are the same.
	writers int
	// budgets that the policy asks for, one after the other, at any time.
	budgets []uint8
	// room, where set, is how many imports may run of the group of sources that the
	// first two images belong to.
	room uint8
	// stale: the admission policy's copy of the ledger may be old.
	stale bool
	// deletes: people delete images; forces: also without the finalizer.
	deletes, forces bool
	// How often somebody deletes a DataVolume, or empties or deletes the ledger.
	handVolumes, handLedgers uint8

	// bug are the planted ones.
	bug bug
	// finding, where set, lets all violations pass but those that begin with it.
	finding string
	// wants are states that must be met, or the scenario shows nothing.
	wants []wanted
	// noProgress leaves out the search for slots that are lost for ever.
	noProgress bool
}

// wanted is a state that a scenario is there to show, by name.
type wanted struct {
	what string
	met  func(*world) bool
}

// bug is a planted one.
type bug uint

const (
	writesWithoutCAS bug = 1 << iota
	candidatesFromCache
	freesBeforeOutcome
	freesOnAbsence
	noAdmissionPolicy
	admissionIgnoresEnded
	freesWithoutEndedMark
	removesBeforeEndedMark
	tearsDownBesideLedger
	givesUpUnseen
	incrementsAttempts
	ignoresLowerBudget
	rollsForwardBegun
	listsBeforeLedger
	neverRollsForward
	neverRemoves
	freesSuccessUnmarked
	groupsWithoutRoomStart
)

func (s *scenario) has(b bug) bool { return s.bug&b != 0 }

func (s *scenario) nameOf(image int, attempt uint8) int { return image*s.attempts + int(attempt) - 1 }
func (s *scenario) imageOf(name int) int                { return name / s.attempts }
func (s *scenario) attemptOf(name int) uint8            { return uint8(name%s.attempts) + 1 }

func has(mask uint8, name int) bool { return mask&(1<<name) != 0 }

func count(mask uint8) int { return bits.OnesCount8(mask) }

// outcome of an attempt. Those below the last that ended have failed.
func (i image) outcomeOf(attempt uint8) uint8 {
	switch {
	case attempt < i.ended:
		return failed
	case attempt == i.ended:
		return i.outcome
	}
	return noOutcome
}

func (s *scenario) over(w *world, name int) bool {
	im := w.images[s.imageOf(name)]
	return im.life == gone || im.outcomeOf(s.attemptOf(name)) != noOutcome
}

// object tells that the DataVolume itself is there.
func (v volume) object() bool { return v.state >= running && v.state <= complete }

// transfers tells that bytes may come in.
func (v volume) transfers() bool {
	return v.state == running || v.state == failing || v.state == removing
}

// unfinished are the DataVolumes that a list shows and that are not complete.
func (w *world) unfinished() (mask uint8) {
	for k, v := range w.volumes {
		if v.state == running || v.state == failing {
			mask |= 1 << k
		}
	}
	return mask
}

func (w *world) transferring() (mask uint8) {
	for k, v := range w.volumes {
		if v.transfers() {
			mask |= 1 << k
		}
	}
	return mask
}

func (s *scenario) start() world {
	w := world{}
	if s.writers == 1 {
		w.writers[1].pc = pcNone
	}
	return w
}

// settle is called after every step: the excuse for what a hand-made loss of the
// ledger left unlisted lasts until it is listed again or transfers no more.
func (s *scenario) settle(w *world) {
	w.debt &^= w.listed
	w.debt &= w.transferring()
	for i := range w.writers {
		if x := &w.writers[i]; !x.fresh && !s.has(writesWithoutCAS) {
			x.most = 0 // it will not write
		}
	}
	if !s.stale {
		w.cached = w.ledger
		w.cached.budget = 0
	}
}

// violated checks what must hold in every state, S1 first.
func (s *scenario) violated(w *world) string {
	if w.transferring()&^(w.listed|w.debt) != 0 {
		return "S1: an import runs that is in no slot"
	}
	if s.handLedgers == 0 && count(w.transferring()) > count(w.listed) {
		return "S1: more imports run than there are slots"
	}
	if w.ended&^w.listed != 0 {
		return "a slot is marked that does not exist"
	}
	for i := range s.images {
		mask := uint8(1<<s.attempts-1) << (i * s.attempts)
		if count(w.listed&mask) > 1 {
			return "an image has two slots"
		}
	}
	return ""
}

// good is what must stay reachable: no slot is taken and nothing runs.
func (s *scenario) good(w *world) bool { return w.listed == 0 && w.transferring() == 0 }

func (s *scenario) text(mask, marked uint8) string {
	var parts []string
	for k := range s.images * s.attempts {
		if has(mask, k) {
			part := fmt.Sprintf("%c%d", 'a'+rune(s.imageOf(k)), s.attemptOf(k))
			if has(marked, k) {
				part += "(ended)"
			}
			parts = append(parts, part)
		}
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// line shows a state in one line.
func (s *scenario) line(w *world) string {
	var b strings.Builder
	if w.exists == 0 {
		b.WriteString("no ledger")
	} else {
		fmt.Fprintf(&b, "ledger %d%s", w.budget, s.text(w.listed, w.ended))
	}
	if s.stale {
		fmt.Fprintf(&b, " cached %s", s.text(w.cached.listed, w.cached.ended))
	}
	for i := range s.images {
		im := w.images[i]
		fmt.Fprintf(&b, " | %c", 'a'+rune(i))
		b.WriteString([]string{"", " deleting", " gone"}[im.life])
		fmt.Fprintf(&b, " begun %d ended %d%s", im.begun, im.ended, []string{"", " Succeeded", " Failed"}[im.outcome])
		for a := range s.attempts {
			if v := w.volumes[i*s.attempts+a]; v.state != absent {
				fmt.Fprintf(&b, " %c%d %s", 'a'+rune(i), a+1,
					[]string{"", "running", "failing", "complete", "removing", "clearing"}[v.state])
			}
		}
	}
	return b.String()
}

func (x writer) bytes() [26]byte {
	b := [26]byte{x.pc, x.exists, x.ledger.budget, x.listed, x.ended, 0, x.asked, x.most, x.at,
		x.unlisted, x.wanted, x.strays, x.create, x.knewBegun}
	if x.fresh {
		b[5] = 1
	}
	copy(b[14:], x.facts[:])
	copy(b[20:], x.candidates[:])
	return b
}

// canonical puts the two writers in order: which of them is which makes no
// difference to what can happen.
func (w *world) canonical() world {
	c := *w
	if c.writers[0] == c.writers[1] {
		return c
	}
	a, b := c.writers[0].bytes(), c.writers[1].bytes()
	if string(a[:]) > string(b[:]) {
		c.writers[0], c.writers[1] = c.writers[1], c.writers[0]
	}
	return c
}
