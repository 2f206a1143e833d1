package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"

	config "github.com/coracle-dev/coracle/apis/config/v1alpha1"
	"github.com/coracle-dev/coracle/pkg/base/bounded"
	"github.com/coracle-dev/coracle/pkg/state/store"
)

// KubeAPIServer has the flags of upstream's kube-apiserver that Coracle honours.
type KubeAPIServer struct {
	// Config has the flags that have the same name and meaning as Coracle's options.
	Config config.Config

	BindAddress, AdvertiseAddress    net.IP
	SecurePort                       int
	CertDir, TLSCertFile, TLSKeyFile string
	ClientCAFile, TokenAuthFile      string
	AuthorizationModes               []string
	EtcdServers                      []string
	EtcdPrefix, StorageBackend       string
	EtcdCAFile                       string
	EtcdCertFile, EtcdKeyFile        string
	AnonymousAuth                    bool
	// Flags are all flags and their values, for /flagz.
	Flags map[string]string
}

// maxKeyFile is the maximum size of a file with keys or certificates, in bytes.
const maxKeyFile = 4 << 20

// pairName is the base name of the serving certificate and key in CertDir, the same as upstream's.
const pairName = "apiserver"

// Validate returns all errors at once, in upstream's wording where upstream has the check.
func (k *KubeAPIServer) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(len(k.EtcdServers) == 0, "--etcd-servers must be specified")
	refuse(k.EtcdPrefix != "/registry", "--etcd-prefix %q: only /registry is supported", k.EtcdPrefix)
	refuse(k.StorageBackend != "" && k.StorageBackend != "etcd3",
		"--storage-backend invalid, allowed values: etcd3. If not specified, it will default to 'etcd3'")
	refuse(k.SecurePort < 1 || k.SecurePort > 65535,
		"--secure-port %v must be between 1 and 65535, inclusive. It cannot be turned off with 0", k.SecurePort)
	refuse(len(k.Config.AccountIssuers) == 0,
		"service-account-issuer is a required flag, --service-account-issuer must be set")
	refuse(k.Config.AccountSigningKey == "", "service-account-signing-key-file is a required flag")
	refuse((k.TLSCertFile == "") != (k.TLSKeyFile == ""), "--tls-cert-file and --tls-private-key-file go together")
	for _, mode := range k.AuthorizationModes {
		refuse(!slices.Contains([]string{"RBAC", "Node", "AlwaysAllow"}, mode),
			"authorization-mode %q is not supported: use RBAC, Node or AlwaysAllow", mode)
	}
	refuse(len(k.AuthorizationModes) > 0 && !slices.Contains(k.AuthorizationModes, "RBAC") && !k.alwaysAllow(),
		"--authorization-mode needs RBAC or AlwaysAllow")
	refuse(len(k.AuthorizationModes) > 0 && k.Config.AuthorizationConfig != "",
		"--authorization-config can not be specified when --authorization-mode or --authorization-webhook-* flags are "+
			"defined")
	return errors.Join(errs...)
}

// alwaysAllow reports whether every request is authorized. As upstream, this is the default without authorization
// options.
func (k *KubeAPIServer) alwaysAllow() bool {
	return slices.Contains(k.AuthorizationModes, "AlwaysAllow") ||
		len(k.AuthorizationModes) == 0 && k.Config.AuthorizationConfig == ""
}

// Run serves the API until ctx is done.
func (k *KubeAPIServer) Run(ctx context.Context, log *slog.Logger) (err error) {
	if err := k.Validate(); err != nil {
		return err
	}
	given, err := k.given()
	if err != nil {
		return err
	}
	// The directory holds keys that only this process needs.
	dir, err := os.MkdirTemp("", "kube-apiserver-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp",
		net.JoinHostPort(k.BindAddress.String(), strconv.Itoa(k.SecurePort)))
	if err != nil {
		return fmt.Errorf("failed to create listener: %w", err)
	}
	quietLibraries(log)
	c := k.Config
	if err := c.Absolute(); err != nil {
		return err
	}
	c.DataDir, c.MergeKubeconfig = dir, false
	// As upstream, AlwaysAllow turns anonymous access off.
	c.AnonymousAuth = k.AnonymousAuth && !k.alwaysAllow()
	c.Disable = []string{config.Controllers, config.Scheduler, config.Ingresses, config.LoadBalancer}
	e, err := NewEmbedded(EmbeddedConfig{Config: c, Listener: listener, Given: given, Log: log})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	return e.Run(ctx)
}

func (k *KubeAPIServer) given() (g Given, err error) {
	g = Given{Etcd: store.Servers{URLs: k.EtcdServers}, AlwaysAllow: k.alwaysAllow(), Flags: k.Flags}
	if g.Address, err = k.address(); err != nil {
		return g, err
	}
	if g.Etcd.TLS, err = k.etcdTLS(); err != nil {
		return g, err
	}
	if g.Certificate, err = k.serving(); err != nil {
		return g, err
	}
	if k.ClientCAFile != "" {
		if g.ClientCAs, err = authorityCertificates("--client-ca-file", k.ClientCAFile); err != nil {
			return g, err
		}
	}
	if k.TokenAuthFile != "" {
		if g.Tokens, err = tokenfile.NewCSV(k.TokenAuthFile); err != nil {
			return g, err
		}
	}
	return g, nil
}

// address returns the API's address for nodes and pods: the advertised address or else the listener's.
func (k *KubeAPIServer) address() (netip.Addr, error) {
	if a, ok := netip.AddrFromSlice(k.AdvertiseAddress); ok {
		return a.Unmap(), nil
	}
	if a, ok := netip.AddrFromSlice(k.BindAddress); ok && !a.Unmap().IsUnspecified() {
		return reachable(a.Unmap()), nil
	}
	return outwardAddress()
}

func (k *KubeAPIServer) etcdTLS() (*tls.Config, error) {
	if !slices.ContainsFunc(k.EtcdServers, func(u string) bool { return strings.HasPrefix(u, "https:") }) {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	var err error
	if k.EtcdCAFile != "" {
		if c.RootCAs, err = pool("--etcd-cafile", k.EtcdCAFile); err != nil {
			return nil, err
		}
	}
	if k.EtcdCertFile != "" {
		pair, err := tls.LoadX509KeyPair(k.EtcdCertFile, k.EtcdKeyFile)
		if err != nil {
			return nil, fmt.Errorf("--etcd-certfile: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// serving returns the given certificate or else the one in CertDir. As upstream, it makes one there if there is none:
// clients read it as the authority.
func (k *KubeAPIServer) serving() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	certFile, keyFile := k.TLSCertFile, k.TLSKeyFile
	if certFile == "" {
		certFile, keyFile = filepath.Join(k.CertDir, pairName+".crt"), filepath.Join(k.CertDir, pairName+".key")
		there, err := cert.CanReadCertAndKey(certFile, keyFile)
		if err == nil && !there {
			err = k.selfSign(certFile, keyFile)
		}
		if err != nil {
			return nil, fmt.Errorf("--cert-dir: %w", err)
		}
	}
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("the serving certificate: %w", err)
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &pair, nil }, nil
}

func (k *KubeAPIServer) selfSign(certFile, keyFile string) error {
	address, err := k.address()
	if err != nil {
		return err
	}
	services, err := netip.ParsePrefix(k.Config.ServiceCIDR)
	if err != nil {
		return err
	}
	ips := []net.IP{net.IPv4(127, 0, 0, 1), services.Addr().Next().AsSlice()}
	if !k.BindAddress.IsUnspecified() {
		ips = append(ips, k.BindAddress)
	}
	names := []string{"localhost", "kubernetes.default.svc", "kubernetes.default", "kubernetes"}
	certificate, key, err := cert.GenerateSelfSignedCertKey(address.String(), ips, names)
	if err != nil {
		return err
	}
	return errors.Join(cert.WriteCert(certFile, certificate), keyutil.WriteKey(keyFile, key))
}

func pool(option, file string) (*x509.CertPool, error) {
	all, err := authorityCertificates(option, file)
	return poolOf(all), err
}

func poolOf(all []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, one := range all {
		p.AddCert(one)
	}
	return p
}

func authorityCertificates(option, file string) ([]*x509.Certificate, error) {
	text, err := bounded.Configured(file, maxKeyFile)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", option, err)
	}
	all, err := cert.ParseCertsPEM(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", option, file, err)
	}
	return all, nil
}
