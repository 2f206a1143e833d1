package snapshot

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	// etcdMagic is bbolt's magic number in the first page of a database, behind the page header.
	etcdMagic = 0xED0CDAED
	// EtcdHead is the number of bytes that IsEtcd needs.
	EtcdHead = 20
	// sector divides the size of a database, in bytes. The remainder shows whether a snapshot ends with its hash.
	sector = 512
)

// IsEtcd reports whether a file that begins with head is an etcd database, as `etcdctl snapshot save` writes it.
func IsEtcd(head []byte) bool {
	return len(head) >= EtcdHead && binary.LittleEndian.Uint32(head[EtcdHead-4:]) == etcdMagic
}

// UnpackEtcd writes the database of an `etcdctl snapshot save` file into dir, as Unpack does, and verifies the hash at
// the file's end. The file has no keys.
func UnpackEtcd(r io.Reader, dir string) (err error) {
	name := filepath.Join(dir, Database)
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := io.Copy(f, io.LimitReader(r, mostDatabaseBytes+sha256.Size+1))
	switch {
	case err != nil:
		return fmt.Errorf("could not read the etcd snapshot: %w", err)
	case size > mostDatabaseBytes+sha256.Size:
		return fmt.Errorf("the etcd snapshot has more than %d bytes", int64(mostDatabaseBytes))
	case size%sector == 0:
		return errors.New("the etcd database has no hash at its end, as if it was copied from etcd's data directory, where " +
			"it may be incomplete: write it with `etcdctl snapshot save`")
	case size%sector != sha256.Size:
		return errors.New("the etcd snapshot is incomplete")
	}
	size -= sha256.Size
	want := make([]byte, sha256.Size)
	if _, err := f.ReadAt(want, size); err != nil {
		return err
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return err
	}
	if !bytes.Equal(sum.Sum(nil), want) {
		return errors.New("the etcd snapshot is damaged: its content does not have the hash at its end")
	}
	return errors.Join(f.Truncate(size), f.Sync())
}
