package kms

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	api "k8s.io/kms/apis/v2"
	"k8s.io/kms/pkg/service"
	"k8s.io/kms/pkg/util"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// maxResponse limits a plugin's response in bytes: several times upstream's limits for all its parts together.
	maxResponse = 256 << 10
	maxReason   = 1 << 10
	// reconnect is the longest pause between attempts to connect, so that one call is enough to find a plugin that is
	// back.
	reconnect = time.Second
)

// ErrUnavailable means that a plugin does not answer. The value may be readable later.
var ErrUnavailable = errors.New("the KMS plugin does not answer")

// connection calls a plugin. Each call ends within the timeout.
type connection struct {
	conn    *grpc.ClientConn
	client  api.KeyManagementServiceClient
	timeout time.Duration
}

var _ service.Service = (*connection)(nil)

// connect returns a connection that is made with the first call. The endpoint is a URL such as unix:///run/kms.sock,
// or unix:///@NAME for the abstract namespace.
func connect(endpoint string, timeout time.Duration) (*connection, error) {
	socket, err := util.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true), grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{BaseDelay: reconnect / 10, Multiplier: 2, MaxDelay: reconnect}, MinConnectTimeout: reconnect,
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}))
	if err != nil {
		return nil, err
	}
	return &connection{conn: conn, client: api.NewKeyManagementServiceClient(conn), timeout: timeout}, nil
}

// Status implements service.Service.
func (c *connection) Status(ctx context.Context) (*service.StatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, err := c.client.Status(ctx, &api.StatusRequest{})
	if err != nil {
		return nil, failure(err)
	}
	return &service.StatusResponse{Version: r.GetVersion(), Healthz: r.GetHealthz(), KeyID: r.GetKeyId()}, nil
}

// Encrypt implements service.Service.
func (c *connection) Encrypt(ctx context.Context, uid string, data []byte) (*service.EncryptResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, err := c.client.Encrypt(ctx, &api.EncryptRequest{Plaintext: data, Uid: uid})
	if err != nil {
		return nil, failure(err)
	}
	return &service.EncryptResponse{
		Ciphertext:  r.GetCiphertext(),
		KeyID:       r.GetKeyId(),
		Annotations: r.GetAnnotations(),
	}, nil
}

// Decrypt implements service.Service.
func (c *connection) Decrypt(ctx context.Context, uid string, req *service.DecryptRequest) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	r, err := c.client.Decrypt(ctx, &api.DecryptRequest{
		Ciphertext:  req.Ciphertext,
		Uid:         uid,
		KeyId:       req.KeyID,
		Annotations: req.Annotations,
	})
	if err != nil {
		return nil, failure(err)
	}
	return r.GetPlaintext(), nil
}

func (c *connection) close() { _ = c.conn.Close() }

// failure returns the error of a call: ErrUnavailable, unless the plugin itself refused.
func failure(err error) error {
	s := status.Convert(err)
	reason := bounded.Text(s.Message(), maxReason)
	switch s.Code() {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.ResourceExhausted:
		return fmt.Errorf("%w: %s", ErrUnavailable, reason)
	}
	return fmt.Errorf("the KMS plugin answers %s: %s", s.Code(), reason)
}
