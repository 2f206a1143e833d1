// Package kmstest is a KMS v2 plugin for tests, with AES-GCM keys in memory. Invariant: only the key that encrypted a
// value decrypts it.
package kmstest

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"net"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	api "k8s.io/kms/apis/v2"
)

// Plugin serves keys derived from their names, so that another Plugin has the same ones.
type Plugin struct {
	api.UnimplementedKeyManagementServiceServer

	mu     sync.Mutex
	key    string
	health string
	hang   chan struct{}

	// Decrypts counts the calls that decrypt.
	Decrypts atomic.Int64
}

// New returns a healthy Plugin that encrypts with a key.
func New(key string) *Plugin { return &Plugin{key: key, health: "ok"} }

// Serve serves on a Unix socket until stop is called, which ends calls in progress.
func (p *Plugin) Serve(socket string) (stop func(), err error) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return nil, err
	}
	s := grpc.NewServer()
	api.RegisterKeyManagementServiceServer(s, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	return func() { s.Stop(); <-done }, nil
}

// Use sets the encryption key, and the reported health; "ok" is healthy.
func (p *Plugin) Use(key, health string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.key, p.health = key, health
}

// Hang blocks calls until the returned function is called or their context ends.
func (p *Plugin) Hang() (goOn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hang = make(chan struct{})
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		close(p.hang)
		p.hang = nil
	})
}

func (p *Plugin) wait(ctx context.Context) (key, health string, err error) {
	p.mu.Lock()
	hang := p.hang
	p.mu.Unlock()
	if hang != nil {
		select {
		case <-hang:
		case <-ctx.Done(): // no answer, which could arrive before the caller sees its own deadline
			return "", "", status.FromContextError(ctx.Err()).Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.key, p.health, nil
}

// Status implements the plugin's API.
func (p *Plugin) Status(ctx context.Context, _ *api.StatusRequest) (*api.StatusResponse, error) {
	key, health, err := p.wait(ctx)
	if err != nil {
		return nil, err
	}
	return &api.StatusResponse{Version: "v2", Healthz: health, KeyId: key}, nil
}

func sealer(key string) cipher.AEAD {
	secret := sha256.Sum256([]byte(key))
	block, err := aes.NewCipher(secret[:])
	if err != nil {
		panic(err) // 32 bytes are a key
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		panic(err)
	}
	return aead
}

// Encrypt implements the plugin's API.
func (p *Plugin) Encrypt(ctx context.Context, req *api.EncryptRequest) (*api.EncryptResponse, error) {
	key, _, err := p.wait(ctx)
	if err != nil {
		return nil, err
	}
	return &api.EncryptResponse{Ciphertext: sealer(key).Seal(nil, nil, req.GetPlaintext(), []byte(key)), KeyId: key,
		Annotations: map[string][]byte{"plugin.kmstest.example.org": []byte("1")}}, nil
}

// Decrypt implements the plugin's API.
func (p *Plugin) Decrypt(ctx context.Context, req *api.DecryptRequest) (*api.DecryptResponse, error) {
	if _, _, err := p.wait(ctx); err != nil {
		return nil, err
	}
	p.Decrypts.Add(1)
	plain, err := sealer(req.GetKeyId()).Open(nil, nil, req.GetCiphertext(), []byte(req.GetKeyId()))
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, "this key did not encrypt it")
	}
	return &api.DecryptResponse{Plaintext: plain}, nil
}
