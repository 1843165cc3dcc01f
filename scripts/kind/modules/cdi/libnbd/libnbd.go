// Package libnbd stands in for the Go binding of libnbd, which no module proxy
// serves and which needs cgo. CDI's importer uses it for imports from VMware
// only: those fail here, and say why.
package libnbd

import "errors"

// The flags of libnbd's protocol that the importer names.
const (
	CMD_FLAG_REQ_ONE CmdFlag = 1 << 3
	STATE_HOLE       uint32  = 1
	STATE_ZERO       uint32  = 2
)

var errAbsent = errors.New("this importer was built without libnbd: it imports nothing from VMware")

type CmdFlag uint32

type Libnbd struct{}

type LibnbdError struct{}

func (*LibnbdError) Error() string { return errAbsent.Error() }

type PreadOptargs struct{}

type BlockStatusOptargs struct {
	Flags    CmdFlag
	FlagsSet bool
}

type ExtentCallback func(metacontext string, offset uint64, entries []uint32, err *int) int

func Create() (*Libnbd, error) { return nil, errAbsent }

func (*Libnbd) AddMetaContext(string) error { return errAbsent }

func (*Libnbd) ConnectUri(string) error { return errAbsent }

func (*Libnbd) GetSize() (uint64, error) { return 0, errAbsent }

func (*Libnbd) Pread([]byte, uint64, *PreadOptargs) error { return errAbsent }

func (*Libnbd) Close() *LibnbdError { return &LibnbdError{} }

func (*Libnbd) BlockStatus(uint64, uint64, ExtentCallback, *BlockStatusOptargs) error {
	return errAbsent
}
