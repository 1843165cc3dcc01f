package publish

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
)

// Disk is what a disk image on this machine says about itself.
type Disk struct {
	Path   string `json:"path"`
	Format string `json:"format"`
	// VirtualBytes is the size of the disk in a machine, FileBytes that of the download.
	VirtualBytes int64  `json:"virtualBytes"`
	FileBytes    int64  `json:"fileBytes"`
	Checksum     string `json:"checksum"`
}

var qcow2Magic = []byte{'Q', 'F', 'I', 0xfb}

// qcow2 header, as docs/interop/qcow2.txt of QEMU has it: magic, version, offset and size of the
// backing file's name, bits of a cluster, size, encryption; from version 3 features.
const (
	headerSize           = 512
	qcow2HeaderSize      = 104
	qcow2Incompatible    = 72
	qcow2BackingFile     = 8
	qcow2VirtualSize     = 24
	qcow2Encryption      = 32
	qcow2ExternalData    = 1 << 2
	maxVirtualBytes      = 64 << 40
	diskHashBufferLength = 1 << 20
)

const sizeUnknown = "its virtual size is unknown; give --size, and --checksum instead of --file"

// otherFormats are those that CDI tells from a raw disk by its first bytes, beside qcow2, and what is wrong with
// them. A vhd of fixed size has its cookie at its end alone, and is raw to CDI, too.
var otherFormats = []struct {
	offset         int
	magic, problem string
}{
	{0, "\x1f\x8b", "is compressed: " + sizeUnknown},
	{0, "\xfd7zXZ\x00", "is compressed: " + sizeUnknown},
	{0, "\x28\xb5\x2f\xfd", "is compressed: " + sizeUnknown},
	{0, "KDMV", "is vmdk: " + sizeUnknown},
	{0x40, "\x7f\x10\xda\xbe", "is vdi: " + sizeUnknown},
	{0, "conectix", "is vhd: " + sizeUnknown},
	{0, "vhdxfile", "is vhdx: " + sizeUnknown},
	{0x101, "ustar", "is a tar archive, as an OVA is, of which clusters would make the disk: extract the disk image"},
}

// interruptible is a reader that ends with its context: hashing a disk takes minutes.
type interruptible struct {
	ctx  context.Context
	file io.Reader
}

func (r interruptible) Read(buffer []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	return r.file.Read(buffer)
}

// ReadDisk reads the header of a file and hashes it.
func ReadDisk(ctx context.Context, path string) (*Disk, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("--file: %w", err)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("--file %s: is no regular file", path)
	}
	d, err := readDisk(interruptible{ctx, file})
	if err != nil {
		return nil, fmt.Errorf("--file %s: %w", path, err)
	}
	d.Path = path
	return d, nil
}

func readDisk(file io.Reader) (*Disk, error) {
	header := make([]byte, headerSize)
	n, err := io.ReadFull(file, header)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, err
	}
	header = header[:n]
	hash := sha256.New()
	hash.Write(header)
	rest, err := io.CopyBuffer(hash, struct{ io.Reader }{file}, make([]byte, diskHashBufferLength))
	if err != nil {
		return nil, err
	}
	d := &Disk{Format: "raw", FileBytes: int64(n) + rest, Checksum: "sha256:" + hex.EncodeToString(hash.Sum(nil))}
	d.VirtualBytes = d.FileBytes
	switch {
	case d.FileBytes == 0:
		return nil, errors.New("is empty")
	case bytes.HasPrefix(header, qcow2Magic):
		return d, d.readQCOW2(header)
	}
	for _, format := range otherFormats {
		if len(header) > format.offset && bytes.HasPrefix(header[format.offset:], []byte(format.magic)) {
			return nil, errors.New(format.problem)
		}
	}
	return d, nil
}

func (d *Disk) readQCOW2(header []byte) error {
	if len(header) < 72 {
		return errors.New("its qcow2 header is cut off")
	}
	version := binary.BigEndian.Uint32(header[4:])
	size := binary.BigEndian.Uint64(header[qcow2VirtualSize:])
	switch {
	case version != 2 && version != 3:
		return fmt.Errorf("is qcow2 of version %d: 2 and 3 are known", version)
	case version == 3 && len(header) < qcow2HeaderSize:
		return errors.New("its qcow2 header is cut off")
	case binary.BigEndian.Uint64(header[qcow2BackingFile:]) != 0:
		return errors.New("has a backing file, which clusters would not have: flatten it with qemu-img convert")
	case binary.BigEndian.Uint32(header[qcow2Encryption:]) != 0:
		return errors.New("is encrypted, which CDI cannot import")
	case version == 3 && binary.BigEndian.Uint64(header[qcow2Incompatible:])&qcow2ExternalData != 0:
		return errors.New("has its data in another file: flatten it with qemu-img convert")
	case size == 0 || size > maxVirtualBytes:
		return fmt.Errorf("says that its disk has %d bytes: 1 to 64 TiB are possible", size)
	}
	d.Format, d.VirtualBytes = "qcow2", int64(size)
	return nil
}

// DiskSize returns spec.diskSize for a disk: whole MiB.
func (d *Disk) DiskSize() string {
	const unit = 1 << 20
	return fmt.Sprintf("%dMi", (d.VirtualBytes+unit-1)/unit)
}
