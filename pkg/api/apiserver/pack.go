package apiserver

import (
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/klauspost/compress/flate"
)

// packer compresses a response by gzip (RFC 1952). Between Flush and the next Write, as between the events of a
// watch, it holds no compressor. The next compressor continues the stream without the history. (Upstream begins
// another gzip member after each flush, which curl cannot read.)
type packer struct {
	w       io.Writer
	z       *flate.Writer
	started bool
	sum     uint32
	size    uint32 // modulo 2^32 (RFC 1952)
}

var (
	compressors = sync.Pool{
		New: func() any { z, _ := flate.NewWriter(io.Discard, flate.BestSpeed); return z },
	} //nolint:gochecknoglobals // a pool
	compressing atomic.Int32 //nolint:gochecknoglobals // how many of them are in use
)

// mostCompressors limits the compressors in use, of 0.8 MB each: a slow reader holds one, and a client may have
// thousands of watches. Above the limit, data is sent in uncompressed blocks.
const mostCompressors = 100

const (
	gzipHead = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff" // no file name, no time, unknown OS
	gzipLast = "\x03\x00"                                 // an empty final block (RFC 1951, section 3.2.6)
)

func (p *packer) Write(b []byte) (int, error) {
	if err := p.start(); err != nil {
		return 0, err
	}
	if p.z == nil {
		p.take()
	}
	p.sum = crc32.Update(p.sum, crc32.IEEETable, b)
	p.size += uint32(len(b))
	if p.z == nil {
		return len(b), p.store(b)
	}
	return p.z.Write(b)
}

func (p *packer) take() {
	if compressing.Add(1) > mostCompressors {
		compressing.Add(-1)
		return
	}
	p.z = compressors.Get().(*flate.Writer)
	p.z.Reset(p.w)
}

// release returns the compressor to the pool. It may be called repeatedly, and must be called at the end.
func (p *packer) release() {
	if p.z == nil {
		return
	}
	p.z.Reset(io.Discard) // drop the reference to the connection
	compressors.Put(p.z)
	p.z = nil
	compressing.Add(-1)
}

// store writes uncompressed blocks (RFC 1951, section 3.2.4).
func (p *packer) store(b []byte) error {
	for block := range slices.Chunk(b, math.MaxUint16) {
		n := uint16(len(block))
		head := binary.LittleEndian.AppendUint16(binary.LittleEndian.AppendUint16([]byte{0}, n), ^n)
		if _, err := p.w.Write(head); err != nil {
			return err
		}
		if _, err := p.w.Write(block); err != nil {
			return err
		}
	}
	return nil
}

func (p *packer) start() error {
	if p.started {
		return nil
	}
	p.started = true
	_, err := io.WriteString(p.w, gzipHead)
	return err
}

// Flush writes all pending data, up to a byte boundary, and releases the compressor.
func (p *packer) Flush() error {
	if p.z == nil {
		return nil
	}
	defer p.release()
	return p.z.Flush()
}

// Close writes the gzip trailer. It does not close the underlying writer.
func (p *packer) Close() error {
	defer p.release()
	if err := p.start(); err != nil {
		return err
	}
	if err := p.Flush(); err != nil {
		return err
	}
	b := binary.LittleEndian.AppendUint32([]byte(gzipLast), p.sum)
	_, err := p.w.Write(binary.LittleEndian.AppendUint32(b, p.size))
	return err
}
