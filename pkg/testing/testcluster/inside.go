package testcluster

import (
	"context"
	"net"

	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/coracle-dev/coracle/pkg/server"
)

type inside struct {
	*server.Embedded
}

func newInside(c Config, dir string) (*inside, error) {
	o := c.options()
	o.DataDir = dir
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	e, err := server.NewEmbedded(server.EmbeddedConfig{Config: o, Listener: listener, Volatile: true, Log: c.Log})
	if err != nil {
		_ = listener.Close()
		return nil, err
	}
	return &inside{e}, nil
}

func (i *inside) As(name string, groups ...string) (*rest.Config, error) {
	cert, key, err := i.Issue(name, groups...)
	if err != nil {
		return nil, err
	}
	return &rest.Config{
		Host:            i.URL(),
		QPS:             -1,
		TLSClientConfig: rest.TLSClientConfig{CAData: i.Trust(), CertData: cert, KeyData: key},
	}, nil
}

func (i *inside) Client() ctrl.WithWatch {
	return &ownedClient{i.Embedded.Client("testcluster", "system:masters")}
}

func (i *inside) run(ctx context.Context, ready func()) error {
	ended := make(chan struct{})
	notified := make(chan struct{})
	go func() {
		defer close(notified)
		select {
		case <-i.Ready():
			ready()
		case <-ended:
		}
	}()
	err := i.Run(ctx)
	close(ended)
	<-notified
	return err
}
