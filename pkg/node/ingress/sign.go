package ingress

import (
	"crypto"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"io"
	"maps"
	"time"
)

// maxSignWait is how long a handshake waits for its signature.
const maxSignWait = 5 * time.Second

var errSigning = errors.New("the namespace's certificates are used by too many handshakes")

// turns bound the processor time of handshakes: a signature with an RSA key of 8,192 bits takes 0.1 s. A namespace
// makes one signature at a time, and all namespaces together as many as all has room for.
type turns struct {
	all chan struct{}
	of  map[string]chan struct{} // by namespace
}

func newTurns(most int) turns {
	return turns{make(chan struct{}, max(most, 1)), map[string]chan struct{}{}}
}

// pace makes signatures with the certificate's key wait for a turn of the namespace, if the key is RSA. Other keys are
// cheap.
func (t turns) pace(namespace string, c *tls.Certificate) {
	key, ok := c.PrivateKey.(*rsa.PrivateKey)
	if !ok {
		return
	}
	if t.of[namespace] == nil {
		t.of[namespace] = make(chan struct{}, 1)
	}
	c.PrivateKey = waiting{key, [...]chan struct{}{t.of[namespace], t.all}}
}

// keep forgets the namespaces that are not used. Their signatures in progress end in their own turns.
func (t turns) keep(used map[string]bool) {
	maps.DeleteFunc(t.of, func(namespace string, _ chan struct{}) bool { return !used[namespace] })
}

// waiting is a key whose signatures take a place in each of turns.
type waiting struct {
	crypto.Signer
	turns [2]chan struct{}
}

// Sign implements crypto.Signer. It fails after maxSignWait.
func (p waiting) Sign(random io.Reader, digest []byte, o crypto.SignerOpts) ([]byte, error) {
	late := time.NewTimer(maxSignWait)
	defer late.Stop()
	for _, turn := range p.turns {
		select {
		case turn <- struct{}{}:
			defer func() { <-turn }()
		case <-late.C:
			return nil, errSigning
		}
	}
	return p.Signer.Sign(random, digest, o)
}
