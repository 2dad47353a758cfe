export function welcome(account: number): Promise<void>;
