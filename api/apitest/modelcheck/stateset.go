package modelcheck

import "hash/maphash"

// stateSet numbers states in the order in which they are added. It stores them in
// chunks, so that growing copies nothing.
type stateSet[S comparable] struct {
	seed   maphash.Seed
	chunks [][]S
	size   uint32

	// table is an open hash table. An entry holds the upper half of a hash, which
	// spares most comparisons of states, and a number + 1.
	table []uint64
}

const chunkSize = 1 << 14

func newStateSet[S comparable]() *stateSet[S] {
	return &stateSet[S]{seed: maphash.MakeSeed(), table: make([]uint64, 1<<16)}
}

func (s *stateSet[S]) get(number uint32) *S { return &s.chunks[number/chunkSize][number%chunkSize] }

// add returns the number of a state, and whether it was in the set already.
func (s *stateSet[S]) add(state *S) (number uint32, known bool) {
	if int(s.size)*2 > len(s.table) {
		s.growTable()
	}
	place, mark := s.findPlace(state)
	if e := s.table[place]; e != 0 {
		return uint32(e) - 1, true
	}
	if s.size%chunkSize == 0 {
		s.chunks = append(s.chunks, make([]S, 0, chunkSize))
	}
	last := len(s.chunks) - 1
	s.chunks[last] = append(s.chunks[last], *state)
	s.size++
	s.table[place] = mark | uint64(s.size)
	return s.size - 1, false
}

func (s *stateSet[S]) growTable() {
	old := s.table
	s.table = make([]uint64, 2*len(old))
	for _, e := range old {
		if e != 0 {
			place, _ := s.findPlace(s.get(uint32(e) - 1))
			s.table[place] = e
		}
	}
}

func (s *stateSet[S]) findPlace(state *S) (place, mark uint64) {
	hash := maphash.Comparable(s.seed, *state)
	mask := uint64(len(s.table) - 1)
	place, mark = hash&mask, hash>>32<<32
	for e := s.table[place]; e != 0 && (e>>32<<32 != mark || *s.get(uint32(e) - 1) != *state); e = s.table[place] {
		place = (place + 1) & mask
	}
	return place, mark
}
