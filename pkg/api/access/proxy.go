package access

import (
	"bytes"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	x509request "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/client-go/util/cert"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

// Proxy is an authenticating proxy in front of the API. It authenticates with a client certificate and passes users
// in headers.
type Proxy struct {
	// CAFile has the CAs of the proxy's certificate. Changes are reloaded. Empty disables the proxy.
	CAFile string
	// Names are the allowed common names of the proxy's certificate. Empty allows all names, but is refused if
	// CAFile contains a CA of Clients, which issues certificates of ordinary clients.
	Names   []string
	Clients func() []*x509.Certificate
	// Headers with the user's name, UID and groups, and header prefixes of extra values.
	NameHeaders, UIDHeaders, GroupHeaders, ExtraPrefixes []string
}

// proxied authenticates requests from the proxy.
type proxied struct {
	authorities []*x509.Certificate
	request     authenticator.Request
}

// reloadProxy reads the proxy's CAs and applies them if they are valid.
func (a *Access) reloadProxy() error {
	c := a.cfg.Proxy
	data, err := bounded.Configured(c.CAFile, maxFile)
	if err != nil {
		return err
	}
	if was, known := a.read[c.CAFile]; known && was == string(data) {
		return nil
	}
	a.read[c.CAFile] = string(data)
	authorities, err := cert.ParseCertsPEM(data)
	if err != nil {
		return err
	}
	if len(c.NameHeaders) == 0 {
		return errors.New("requestheader-username-headers is required with a CA")
	}
	if len(c.Names) == 0 && c.Clients != nil && shareKey(authorities, c.Clients()) {
		return errors.New("the CA also signs ordinary client certificates, whose holders could " +
			"name any user in headers: set requestheader-allowed-names")
	}
	roots := x509.NewCertPool()
	for _, one := range authorities {
		roots.AddCert(one)
	}
	verify := func() (x509.VerifyOptions, bool) {
		o := x509request.DefaultVerifyOptions()
		o.Roots = roots
		return o, true
	}
	list := func(s []string) headerrequest.StringSliceProvider { return headerrequest.StaticStringSlice(s) }
	a.proxy.Store(&proxied{
		authorities,
		headerrequest.NewDynamicVerifyOptionsSecure(verify, list(c.Names), list(c.NameHeaders), list(c.UIDHeaders),
			list(c.GroupHeaders), list(c.ExtraPrefixes)),
	})
	return nil
}

// shareKey reports whether a and b have certificates with the same public key.
func shareKey(a, b []*x509.Certificate) bool {
	return slices.ContainsFunc(a, func(one *x509.Certificate) bool {
		return slices.ContainsFunc(b, func(other *x509.Certificate) bool {
			return bytes.Equal(one.RawSubjectPublicKeyInfo, other.RawSubjectPublicKeyInfo)
		})
	})
}

// ProxyAuthorities returns the CAs of the proxy's certificate, the same slice until they change. It is nil without a
// proxy.
func (a *Access) ProxyAuthorities() []*x509.Certificate {
	if p := a.proxy.Load(); p != nil {
		return p.authorities
	}
	return nil
}

// AuthenticateRequest authenticates a request from the proxy, and removes the user headers from it. It implements
// authenticator.Request.
func (a *Access) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	p := a.proxy.Load()
	if p == nil {
		return nil, false, nil
	}
	for _, name := range a.cfg.Proxy.NameHeaders {
		if req.Header.Get(name) != "" { // without the header, skip the verification of the certificate
			return p.request.AuthenticateRequest(req)
		}
	}
	return nil, false, nil
}
