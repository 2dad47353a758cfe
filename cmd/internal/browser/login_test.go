package browser

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/zitadel/oidc/v3/example/server/exampleop"
	"github.com/zitadel/oidc/v3/example/server/storage"

	"github.com/weir-pg/weir"
	"github.com/weir-pg/weir/cmd/internal/oidc"
	"github.com/weir-pg/weir/internal/pgtest"
	"github.com/weir-pg/weir/weirui"
)

// TestABrowserLogsInAtAnotherSite: a browser goes to the provider, which is another site, and comes back to the page with a session; it acts, is sent to the provider again when the
// session is gone, while a page is open, and logs out.
func TestABrowserLogsInAtAnotherSite(t *testing.T) {
	t.Parallel()
	var provider http.Handler
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { provider.ServeHTTP(w, r) }))
	t.Cleanup(site.Close)
	issuer := strings.Replace(site.URL, "127.0.0.1", "localhost", 1)
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	address := server.URL + "/weir/"
	const secret = "not to be told to anybody"
	users := storage.NewUserStore(issuer)
	clients := map[string]*storage.Client{"weir": storage.WebClient("weir", secret, address+"auth/callback")}
	provider = exampleop.SetupServer(issuer, storage.NewStorageWithClients(users, clients), nil, false)

	pool := pgtest.Pool(t, pgtest.Database(t))
	if _, err := weir.NewClient(pool).Enqueue(t.Context(), letter{To: "ada"}, &weir.Options{Queue: "mail"}); err != nil {
		t.Fatal(err)
	}
	var log pgtest.Log
	access, err := oidc.New(t.Context(), oidc.Config{
		Issuer: issuer, ClientID: "weir", ClientSecret: secret, URL: address, Logger: log.Logger(), RoleClaim: "email", Roles: weirui.Roles{users.GetUserByID("id1").Email: weirui.Operator},
	})
	if err != nil {
		t.Fatal(err)
	}
	ui, err := weirui.New(weirui.Config{Databases: []weirui.Database{{Pool: pool}}, Access: access, Logger: log.Logger()})
	if err != nil {
		t.Fatal(err)
	}
	mux.Handle("/weir/", http.StripPrefix("/weir", ui))

	ctx := chromium(t, address+"queues?name=mail")
	user := users.GetUserByID("id1")
	login := func() {
		t.Helper()
		await(t, ctx, `location.origin + " " + document.readyState`, issuer+" complete")
		do(t, ctx, chromedp.SetValue("#username", user.Username), chromedp.SetValue("#password", user.Password),
			press("button"))
		await(t, ctx, `location.href`, address+"queues?name=mail")
		await(t, ctx, `document.querySelector(".who")?.firstChild.textContent ?? ""`, user.Username+", operator")
	}
	login()
	await(t, ctx, `document.readyState`, "complete") // the table comes behind the user's name
	do(t, ctx, press("#pause-mail"))
	await(t, ctx, `document.querySelector("#pause-mail")?.firstChild.textContent ?? ""`, "Resume")
	do(t, ctx, call(network.ClearBrowserCookies, cdp.Empty{}))
	login() // the page asked for news, and was told that there is no session
	do(t, ctx, press(".logout button"))
	await(t, ctx, `document.querySelector("h1")?.textContent ?? ""`, "Logged out")
	do(t, ctx, chromedp.Navigate(address+"queues"))
	await(t, ctx, `location.origin`, issuer)
	if text := log.String(); strings.Contains(text, "level=WARN") || !strings.Contains(text, "user="+user.Username) {
		t.Errorf("the log is %s", text)
	}
}
