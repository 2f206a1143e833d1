package remote

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	remoteexecution "github.com/bazelbuild/remote-apis/build/bazel/remote/execution/v2"
	"google.golang.org/protobuf/proto"
)

// Digest names a blob by its SHA-256 and its size in bytes.
type Digest struct {
	Hash string
	Size int64
}

func (d Digest) String() string { return fmt.Sprintf("%s/%d", d.Hash, d.Size) }

func (d Digest) proto() *remoteexecution.Digest {
	return &remoteexecution.Digest{Hash: d.Hash, SizeBytes: d.Size}
}

// digestOf validates a digest that a server sent.
func digestOf(d *remoteexecution.Digest) (Digest, error) {
	if raw, err := hex.DecodeString(d.GetHash()); err != nil || len(raw) != sha256.Size || d.GetSizeBytes() < 0 {
		return Digest{}, fmt.Errorf("the server sent a digest that is not SHA-256: %.80q of %d bytes", d.GetHash(),
			d.GetSizeBytes())
	}
	return Digest{d.GetHash(), d.GetSizeBytes()}, nil
}

// Blob is a content with its digest.
type Blob struct {
	Digest Digest
	Data   []byte
}

// NewBlob returns the blob with this data, which the caller must not change afterwards.
func NewBlob(data []byte) Blob {
	sum := sha256.Sum256(data)
	return Blob{Digest{hex.EncodeToString(sum[:]), int64(len(data))}, data}
}

// message returns the blob of a message. Within one version of this program, equal messages give equal blobs.
func message(m proto.Message) (Blob, error) {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return Blob{}, err
	}
	return NewBlob(data), nil
}
