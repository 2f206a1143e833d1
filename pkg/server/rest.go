package server

import (
	"crypto/tls"

	"github.com/coracle-dev/coracle/pkg/base/pki"
	"github.com/coracle-dev/coracle/pkg/systems/rest"
)

func (l *plane) newREST(serving *pki.Source, remote *nodes) (*rest.Server, error) {
	p := l.process
	minVersion, ciphers, err := p.transport()
	if err != nil {
		return nil, err
	}
	return rest.New(rest.Config{
		REST: p.REST, TLS: &tls.Config{GetCertificate: serving.Server, MinVersion: minVersion, CipherSuites: ciphers},
		Client: l.client(rest.User), Nodes: remote, Logger: component(p.log, "rest"),
	})
}
